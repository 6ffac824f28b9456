// Uploads weights in lanes. Each of up to 8 threads has a lane: a stream, two pinned buffers and, for
// conversions, a staging buffer on the device. A piece is read into one pinned buffer while the other is
// being copied. Eight lanes saturate the link to the device (sixteen were not faster on an H200), and pinning
// memory takes time too.
#include "model/cuda/device_upload.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "kernels/cuda/weights/weights.h"
#include "model/cuda/shard_reader.h"
#include "model/quantize.h"
#include "tensor/cuda.h"

namespace hadal {
namespace {

constexpr int kMaxLanes = 8;
constexpr int64_t kPieceBytes = int64_t{4} << 20;

// Holds rows of a placement's window.
struct Piece {
  const WeightPlacement* placement = nullptr;
  int64_t row = 0, rows = 0;

  // Returns the number of copied bytes: stored values, or values that the host has widened.
  int64_t raw_bytes() const {
    return rows * placement->cols *
           dtype_bytes(placement->widened() ? DType::kBF16 : placement->source->dtype);
  }
  // These tell whether the piece passes through memory of a lane: pinned memory for files and for conversions
  // on the host, device memory for conversions there.
  bool pinned() const { return !placement->source->random || placement->widened(); }
  bool staged() const { return !placement->direct() && !placement->widened(); }
};

std::vector<Piece> cut(std::span<const WeightPlacement> placements) {
  std::vector<Piece> pieces;
  for (const WeightPlacement& placement : placements) {
    Piece piece{&placement, 0, placement.rows};
    int64_t step = std::max<int64_t>(placement.rows, 1);
    if (piece.pinned() || piece.staged()) {
      const int64_t unit = placement.quantised() || placement.widened() ? kFp8BlockSize : 1;
      const int64_t row_bytes = placement.cols * dtype_bytes(placement.source->dtype);
      step = std::max<int64_t>(kPieceBytes / std::max<int64_t>(row_bytes * unit, 1), 1) * unit;
    }
    for (; piece.row < placement.rows; piece.row += step) {
      piece.rows = std::min(step, placement.rows - piece.row);
      pieces.push_back(piece);
    }
  }
  // The order is that of the files, because disks read ahead.
  std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) {
    return std::less<>()(a.placement->source->bytes.data(), b.placement->source->bytes.data());
  });
  return pieces;
}

struct LaneSizes {
  int num_lanes = 0;
  int64_t pinned_bytes = 0;   // size of one buffer
  int64_t staging_bytes = 0;  // on the device
};

LaneSizes lane_sizes(std::span<const Piece> pieces, int num_threads) {
  LaneSizes sizes;
  sizes.num_lanes = static_cast<int>(std::min<size_t>(pieces.size(), std::min(num_threads, kMaxLanes)));
  for (const Piece& piece : pieces) {
    if (piece.pinned()) sizes.pinned_bytes = std::max(sizes.pinned_bytes, piece.raw_bytes());
    if (piece.staged()) sizes.staging_bytes = std::max(sizes.staging_bytes, piece.raw_bytes());
  }
  return sizes;
}

cuda::StoredType stored_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return cuda::StoredType::kF32;
    case DType::kF16:
      return cuda::StoredType::kF16;
    case DType::kBF16:
      return cuda::StoredType::kBF16;
    case DType::kF8E4M3:
      return cuda::StoredType::kE4M3;
    case DType::kI8:
      return cuda::StoredType::kI8;
    default:
      HADAL_CHECK(false, "weights stored as {} are not supported", to_string(dtype));
  }
}

cuda::RandomKind random_kind(RandomTensor::Kind kind) {
  switch (kind) {
    case RandomTensor::Kind::kFp8Codes:
      return cuda::RandomKind::kFp8Codes;
    case RandomTensor::Kind::kPowerOfTwo:
      return cuda::RandomKind::kPowerOfTwo;
    case RandomTensor::Kind::kInt8Codes:
      return cuda::RandomKind::kInt8Codes;
    default:
      return cuda::RandomKind::kReal;
  }
}

class Lane {
 public:
  Lane(const LaneSizes& sizes, const ShardReader& reader)
      : reader_(reader), staging_(static_cast<size_t>(sizes.staging_bytes)) {
    for (Slot& slot : slots_) slot.pinned = PinnedBuffer(static_cast<size_t>(sizes.pinned_bytes));
  }

  void run(const Piece& piece) {
    const WeightPlacement& to = *piece.placement;
    std::byte* place = to.dst + piece.row * to.stride * dtype_bytes(to.type);
    std::byte* raw = piece.staged() ? staging_.data() : place;
    const int64_t raw_stride = piece.staged() ? to.cols : to.stride;
    if (to.widened()) {
      upload_widened(piece, place);
      return;
    }
    if (to.source->random) {
      generate(piece, raw, raw_stride);
    } else {
      upload(piece, raw, raw_stride);
    }
    if (!piece.staged()) return;
    const cuda::StoredType raw_type = stored_type(to.source->dtype);
    if (to.quantised()) {
      const int64_t first_scale =
          is_block_scaled(to.codes) ? piece.row / kFp8BlockSize * to.scale_stride : piece.row;
      cuda::quantize_weight({.type = to.codes,
                             .src = raw,
                             .src_type = raw_type,
                             .src_stride = raw_stride,
                             .codes = reinterpret_cast<fp8_e4m3*>(place),
                             .stride = to.stride,
                             .scales = to.scales + first_scale,
                             .scale_stride = to.scale_stride,
                             .rows = piece.rows,
                             .cols = to.cols},
                            launch());
    } else {
      cuda::convert_weight({.src = raw,
                            .src_type = raw_type,
                            .src_stride = raw_stride,
                            .dst = place,
                            .dst_type = stored_type(to.type),
                            .dst_stride = to.stride,
                            .rows = piece.rows,
                            .cols = to.cols},
                           launch());
    }
  }

  void finish() { stream_.synchronize(); }

 private:
  struct Slot {
    PinnedBuffer pinned;
    CudaEvent copied;  // the copy of the buffer; complete if never recorded
  };

  cuda::Launch launch() const { return {.stream = stream_.handle(), .pdl = false}; }

  void generate(const Piece& piece, std::byte* raw, int64_t raw_stride) {
    const WeightPlacement& to = *piece.placement;
    const RandomTensor::Recipe& recipe = to.source->random->recipe();
    cuda::random_weight({.kind = random_kind(recipe.kind),
                         .type = stored_type(to.source->dtype),
                         .key_low = recipe.key_low,
                         .key_high = recipe.key_high,
                         .offset = recipe.offset,
                         .scale = recipe.scale,
                         .upper_threshold = recipe.upper_threshold,
                         .first = to.repeat ? 0 : (to.row + piece.row) * to.source->cols + to.col,
                         .src_cols = to.repeat ? 0 : to.source->cols,
                         .dst = raw,
                         .dst_stride = raw_stride,
                         .rows = piece.rows,
                         .cols = to.cols},
                        launch());
  }

  void upload(const Piece& piece, std::byte* raw, int64_t raw_stride) {
    const WeightPlacement& to = *piece.placement;
    const TensorSource& from = *to.source;
    const int64_t element_bytes = dtype_bytes(from.dtype);
    const auto row_bytes = static_cast<size_t>(to.cols * element_bytes);
    Slot& slot = free_slot();
    std::byte* pinned = slot.pinned.data();
    const std::byte* stored = from.bytes.data() + ((to.row + piece.row) * from.cols + to.col) * element_bytes;
    if (to.repeat) {
      reader_.read({from.bytes.data(), row_bytes}, pinned);
      for (int64_t i = 1; i < piece.rows; ++i)
        std::memcpy(pinned + static_cast<size_t>(i) * row_bytes, pinned, row_bytes);
    } else if (to.cols == from.cols) {
      reader_.read({stored, static_cast<size_t>(piece.rows) * row_bytes}, pinned);
    } else {
      for (int64_t i = 0; i < piece.rows; ++i) {
        reader_.read({stored + i * from.cols * element_bytes, row_bytes},
                     pinned + static_cast<size_t>(i) * row_bytes);
      }
    }
    if (raw_stride == to.cols || piece.rows == 1) {
      copy_to_device(raw, pinned, static_cast<size_t>(piece.rows) * row_bytes, stream_.handle());
    } else {
      copy_to_device_2d(raw, static_cast<size_t>(raw_stride * element_bytes), pinned, row_bytes, row_bytes,
                        static_cast<size_t>(piece.rows), stream_.handle());
    }
    slot.copied.record(stream_.handle());
  }

  // Converts codes to bf16 on the host: those of kv_b, and of linears that are stacked with others in 16
  // bits.
  void upload_widened(const Piece& piece, std::byte* place) {
    const WeightPlacement& to = *piece.placement;
    const std::vector<std::byte> codes =
        window_values(*to.source, to.row + piece.row, to.col, piece.rows, to.cols);
    const std::vector<float> factors = window_scales(to, to.row + piece.row, piece.rows);
    const bool in_blocks = is_block_scaled(to.codes);
    const int64_t num_runs = (to.cols + kFp8BlockSize - 1) / kFp8BlockSize;
    std::vector<float> values(static_cast<size_t>(piece.rows * to.cols));
    for (int64_t row = 0; row < piece.rows; row += kFp8BlockSize) {
      dequantize_rows(
          to.codes, codes.data() + row * to.cols, std::min<int64_t>(kFp8BlockSize, piece.rows - row), to.cols,
          factors.data() + (in_blocks ? row / kFp8BlockSize * num_runs : row), values.data() + row * to.cols);
    }
    Slot& slot = free_slot();
    round_to_bf16(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), piece.rows * to.cols,
                  reinterpret_cast<bf16*>(slot.pinned.data()));
    const size_t row_bytes = static_cast<size_t>(to.cols) * sizeof(bf16);
    copy_to_device_2d(place, static_cast<size_t>(to.stride) * sizeof(bf16), slot.pinned.data(), row_bytes,
                      row_bytes, static_cast<size_t>(piece.rows), stream_.handle());
    slot.copied.record(stream_.handle());
  }

  // Returns the scales of rows [row, row + num_rows) of a widened placement's columns in the layout of
  // dequantize_rows: those of blocks (the window begins with a block) or one scale per row.
  std::vector<float> window_scales(const WeightPlacement& to, int64_t row, int64_t num_rows) const {
    const TensorSource& scales = *to.code_scales;
    const auto floats = [&](int64_t first, int64_t column, int64_t rows, int64_t cols) {
      const std::vector<std::byte> stored = window_values(scales, first, column, rows, cols);
      std::vector<float> values(static_cast<size_t>(rows * cols));
      widen_to_f32(scales.dtype, stored.data(), rows * cols, values.data());
      return values;
    };
    const auto blocks = [](int64_t size) { return (size + kFp8BlockSize - 1) / kFp8BlockSize; };
    if (is_block_scaled(to.codes)) {
      HADAL_CHECK(row % kFp8BlockSize == 0 && to.col % kFp8BlockSize == 0, "windows must begin with a block");
      return floats(row / kFp8BlockSize, to.col / kFp8BlockSize, blocks(num_rows), blocks(to.cols));
    }
    if (scales.num_elements() != 1) return floats(row, 0, num_rows, 1);
    return std::vector<float>(static_cast<size_t>(num_rows), floats(0, 0, 1, 1)[0]);
  }

  // Returns a window of a source as it is stored.
  std::vector<std::byte> window_values(const TensorSource& from, int64_t row, int64_t col, int64_t rows,
                                       int64_t cols) const {
    if (cols == from.cols) return stored_values(from, row * cols, rows * cols);
    std::vector<std::byte> values;
    for (int64_t i = 0; i < rows; ++i) {
      const std::vector<std::byte> one = stored_values(from, (row + i) * from.cols + col, cols);
      values.insert(values.end(), one.begin(), one.end());
    }
    return values;
  }

  // Returns values [first, first + count) of a source as they are stored.
  std::vector<std::byte> stored_values(const TensorSource& from, int64_t first, int64_t count) const {
    const int64_t size = dtype_bytes(from.dtype);
    std::vector<std::byte> values(static_cast<size_t>(count * size));
    if (from.random) {
      from.random->fill(first, count, values.data());
    } else {
      reader_.read(from.bytes.subspan(static_cast<size_t>(first * size), values.size()), values.data());
    }
    return values;
  }

  Slot& free_slot() {
    Slot& slot = slots_[next_slot_];
    next_slot_ = (next_slot_ + 1) % slots_.size();
    slot.copied.wait();
    return slot;
  }

  const ShardReader& reader_;
  CudaStream stream_;
  DeviceBuffer staging_;
  std::array<Slot, 2> slots_;
  size_t next_slot_ = 0;
};

void transpose_all(std::span<const KeyTranspose> transposes, const CudaStream& stream) {
  for (const KeyTranspose& job : transposes) {
    cuda::transpose_keys({.kv_b = job.kv_b.data,
                          .type = job.kv_b.type == WeightType::kFp8Block ? cuda::StoredType::kE4M3
                                  : job.kv_b.type == WeightType::kF16    ? cuda::StoredType::kF16
                                                                         : cuda::StoredType::kBF16,
                          .stride = job.kv_b.row_stride,
                          .w_uk = const_cast<void*>(job.w_uk.data),
                          .kv_b_scales = job.kv_b.scales,
                          .scale_stride = job.kv_b.scale_stride,
                          .w_uk_scales = const_cast<float*>(job.w_uk.scales),
                          .num_heads = static_cast<int>(job.num_heads)},
                         {.stream = stream.handle(), .pdl = false});
  }
}

}  // namespace

int64_t upload_staging_bytes(std::span<const WeightPlacement> placements, int num_threads) {
  const LaneSizes sizes = lane_sizes(cut(placements), num_threads);
  return sizes.num_lanes * sizes.staging_bytes;
}

void upload_weights(const DeviceWeightPlan& plan, std::byte* base, std::span<const MappedFile> shards,
                    ThreadPool& pool, const LoadProgress& progress) {
  const ShardReader reader(shards);
  const std::vector<Piece> pieces = cut(plan.placements);
  const LaneSizes sizes = lane_sizes(pieces, pool.num_threads());
  size_t total = 0;
  bool random = false;
  for (const Piece& piece : pieces) {
    total += static_cast<size_t>(piece.raw_bytes());
    random |= !piece.pinned();
  }
  const char* what = random ? "generating weights" : "loading weights";

  CudaStream stream;
  fill_device(base, 0, static_cast<size_t>(plan.weights.bytes), stream.handle());
  stream.synchronize();  // padding must be zero before anything is copied beside it

  const int device = cuda::current_device();
  std::vector<std::unique_ptr<Lane>> lanes(static_cast<size_t>(sizes.num_lanes));
  std::atomic<size_t> next_piece{0};
  std::mutex mutex;  // guards done and the callback
  size_t done = 0;
  if (progress) progress(0, total, what);
  pool.run([&](int thread_idx) {
    if (thread_idx >= sizes.num_lanes) return;
    cuda_set_device(device);
    auto& lane = lanes[static_cast<size_t>(thread_idx)];
    lane = std::make_unique<Lane>(sizes, reader);
    for (size_t i = next_piece++; i < pieces.size(); i = next_piece++) {
      lane->run(pieces[i]);
      if (!progress) continue;
      const std::lock_guard lock(mutex);
      done += static_cast<size_t>(pieces[i].raw_bytes());
      progress(done, total, what);
    }
    lane->finish();
  });
  transpose_all(plan.transposes, stream);
  stream.synchronize();
}

}  // namespace hadal
