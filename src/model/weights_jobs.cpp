#include "model/weights_jobs.h"

#include <algorithm>
#include <cstring>
#include <mutex>

#include "model/quantize.h"
#include "model/weights_storage.h"

namespace hadal {
namespace {

constexpr int64_t kPieceElements = int64_t{1} << 20;

// JobPiece is a run of elements of one job: whole strips of 128 rows if rows have scales.
struct JobPiece {
  size_t job_idx = 0;
  int64_t begin = 0;  // in elements
  int64_t count = 0;
};

std::vector<JobPiece> cut(std::span<const WeightJob> jobs) {
  std::vector<JobPiece> pieces;
  for (size_t i = 0; i < jobs.size(); ++i) {
    const TensorSource& source = jobs[i].source;
    const WeightJobKind kind = jobs[i].kind;
    const bool strips = kind == WeightJobKind::kQuantize || kind == WeightJobKind::kDequantize ||
                        kind == WeightJobKind::kDequantizeToBf16;
    const int64_t size = strips ? kFp8BlockSize * source.cols : kPieceElements;
    for (int64_t begin = 0; begin < source.num_elements(); begin += size) {
      pieces.push_back({i, begin, std::min(size, source.num_elements() - begin)});
    }
  }
  return pieces;
}

// Returns the stored values of a piece; random ones are made in `scratch`.
const std::byte* stored_values(const TensorSource& source, const JobPiece& piece,
                               std::vector<uint64_t>& scratch) {
  const int64_t element_bytes = dtype_bytes(source.dtype);
  if (!source.random) return source.bytes.data() + piece.begin * element_bytes;
  scratch.resize(static_cast<size_t>(piece.count * element_bytes + 7) / 8);
  auto* values = reinterpret_cast<std::byte*>(scratch.data());
  source.random->fill(piece.begin, piece.count, values);
  return values;
}

// Returns values [begin, begin + count) of a source in float32.
std::vector<float> widened(const TensorSource& source, int64_t begin, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  std::vector<uint64_t> scratch;
  widen_to_f32(source.dtype, stored_values(source, {.begin = begin, .count = count}, scratch), count,
               values.data());
  return values;
}

// Converts a piece of kDequantize or kDequantizeToBf16, which is whole rows of one strip of blocks.
void dequantize_piece(const WeightJob& job, const JobPiece& piece, const std::byte* codes) {
  const int64_t first_row = piece.begin / job.source.cols;
  const int64_t num_rows = piece.count / job.source.cols;
  const bool one_scale = job.scale_source.num_elements() == 1;
  const int64_t columns = (job.source.cols + kFp8BlockSize - 1) / kFp8BlockSize;
  const bool in_blocks = is_block_scaled(job.type);
  std::vector<float> scales = in_blocks
                                  ? widened(job.scale_source, first_row / kFp8BlockSize * columns, columns)
                              : one_scale ? widened(job.scale_source, 0, 1)
                                          : widened(job.scale_source, first_row, num_rows);
  if (one_scale && !in_blocks) scales.assign(static_cast<size_t>(num_rows), scales[0]);
  if (job.kind == WeightJobKind::kDequantize) {
    dequantize_rows(job.type, codes, num_rows, job.source.cols, scales.data(),
                    reinterpret_cast<float*>(job.dst) + piece.begin);
    return;
  }
  std::vector<float> values(static_cast<size_t>(piece.count));
  dequantize_rows(job.type, codes, num_rows, job.source.cols, scales.data(), values.data());
  round_to_bf16(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), piece.count,
                reinterpret_cast<bf16*>(job.dst) + piece.begin);
}

void run_piece(const WeightJob& job, const JobPiece& piece, std::vector<uint64_t>& scratch) {
  const TensorSource& source = job.source;
  if (job.kind == WeightJobKind::kCopy && source.random) {
    source.random->fill(piece.begin, piece.count, job.dst + piece.begin * dtype_bytes(source.dtype));
    return;
  }
  const int64_t element_bytes = dtype_bytes(source.dtype);
  std::span<const std::byte> mapped;
  if (!source.random) {
    mapped = source.bytes.subspan(static_cast<size_t>(piece.begin * element_bytes),
                                  static_cast<size_t>(piece.count * element_bytes));
    advise_will_need(mapped);
  }
  const std::byte* values = stored_values(source, piece, scratch);
  switch (job.kind) {
    case WeightJobKind::kCopy:
      std::memcpy(job.dst + piece.begin * element_bytes, values,
                  static_cast<size_t>(piece.count * element_bytes));
      break;
    case WeightJobKind::kWiden:
      widen_to_f32(source.dtype, values, piece.count, reinterpret_cast<float*>(job.dst) + piece.begin);
      break;
    case WeightJobKind::kRound:
      round_to_bf16(source.dtype, values, piece.count, reinterpret_cast<bf16*>(job.dst) + piece.begin);
      break;
    case WeightJobKind::kRepeat:
      std::fill_n(reinterpret_cast<float*>(job.dst), job.repeats, widened(source, 0, 1)[0]);
      break;
    case WeightJobKind::kQuantize: {
      const int64_t first_row = piece.begin / source.cols;
      const int64_t scale_columns = (source.cols + kFp8BlockSize - 1) / kFp8BlockSize;
      quantize_rows(
          job.type, source.dtype, values, piece.count / source.cols, source.cols, job.dst + piece.begin,
          job.scales + (is_block_scaled(job.type) ? first_row / kFp8BlockSize * scale_columns : first_row));
      break;
    }
    case WeightJobKind::kDequantize:
    case WeightJobKind::kDequantizeToBf16:
      dequantize_piece(job, piece, values);
      break;
  }
  if (!mapped.empty()) advise_dont_need(mapped);
}

}  // namespace

void run_weight_jobs(std::span<const WeightJob> jobs, ThreadPool& pool, const LoadProgress& progress) {
  const std::vector<JobPiece> pieces = cut(jobs);
  if (pieces.empty()) return;
  const auto piece_bytes = [&](const JobPiece& piece) {
    return static_cast<size_t>(piece.count * dtype_bytes(jobs[piece.job_idx].source.dtype));
  };
  size_t total = 0;
  bool quantizes = false;
  bool random = false;
  for (const JobPiece& piece : pieces) total += piece_bytes(piece);
  for (const WeightJob& job : jobs) {
    quantizes |= job.kind == WeightJobKind::kQuantize;
    random |= job.source.random.has_value();
  }
  const char* what = quantizes ? "quantising weights" : random ? "generating weights" : "converting weights";

  std::mutex mutex;  // guards done and the callback
  size_t done = 0;
  std::vector<std::vector<uint64_t>> scratch(static_cast<size_t>(pool.num_threads()));
  if (progress) progress(0, total, what);
  pool.parallel_for(static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end, int thread_idx) {
    for (int64_t i = begin; i < end; ++i) {
      const JobPiece& piece = pieces[static_cast<size_t>(i)];
      run_piece(jobs[piece.job_idx], piece, scratch[static_cast<size_t>(thread_idx)]);
      if (!progress) continue;
      const std::lock_guard lock(mutex);
      done += piece_bytes(piece);
      progress(done, total, what);
    }
  });
}

}  // namespace hadal
