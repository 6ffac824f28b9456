// Uploads weights in lanes. Each of up to 8 threads has a lane: two pinned buffers, and for every device a
// stream and, for conversions, a staging buffer. A piece is read into one pinned buffer while the other is
// copied to all devices that need it. Eight lanes saturate the link to a device: sixteen were not faster on
// an H200, and pinning more memory takes longer.
#include "model/cuda/device_upload.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <memory>
#include <mutex>
#include <vector>

#include "kernels/cuda/weights/weights.h"
#include "model/cuda/device_upload_pieces.h"
#include "model/cuda/shard_reader.h"
#include "model/quantize.h"
#include "tensor/cuda.h"

namespace hadal {
namespace {

constexpr int kMaxLanes = 8;
constexpr int kNumSlots = 2;

std::vector<RankPlacements> placements_of(std::span<const RankUpload> ranks) {
  std::vector<RankPlacements> placements;
  for (const RankUpload& rank : ranks) placements.push_back({rank.plan->placements, rank.device});
  return placements;
}

int num_lanes(const UploadPieces& pieces, int num_threads) {
  return static_cast<int>(std::min<size_t>(pieces.pieces.size(), std::min(num_threads, kMaxLanes)));
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
  // `staging` has the bytes of each device's staging buffer.
  Lane(const UploadPieces& pieces, int64_t pinned_bytes, std::span<const int64_t> staging,
       const ShardReader& reader)
      : pieces_(pieces), reader_(reader) {
    for (size_t i = 0; i < pieces.devices.size(); ++i) {
      cuda_set_device(pieces.devices[i]);
      devices_.push_back(std::make_unique<Device>(pieces.devices[i], staging[i]));
    }
    for (PinnedBuffer& buffer : pinned_) buffer = PinnedBuffer(static_cast<size_t>(pinned_bytes));
  }

  void run(const UploadPiece& piece) {
    const std::byte* raw = piece.pinned() ? fill_slot(piece) : nullptr;
    for (const UploadTarget& target : pieces_.targets_of(piece)) {
      Device& device = *devices_[static_cast<size_t>(target.device_idx)];
      cuda_set_device(device.index);
      place(piece, *target.placement, raw, device);
      if (raw != nullptr) device.copied[slot_].record(device.stream.handle());
    }
    if (raw != nullptr) slot_ = (slot_ + 1) % kNumSlots;
  }

  void finish() {
    for (const auto& device : devices_) device->stream.synchronize();
  }

 private:
  struct Device {
    Device(int device_index, int64_t staging_bytes)
        : index(device_index), staging(static_cast<size_t>(staging_bytes)) {}
    cuda::Launch launch() const { return {.stream = stream.handle(), .pdl = false}; }

    int index;
    CudaStream stream;
    DeviceBuffer staging;
    std::array<CudaEvent, kNumSlots> copied;  // recorded after the copies of a pinned buffer
  };

  // Writes the part of the piece that a target needs. `raw` has the piece's values in pinned memory, or is
  // null if they are generated.
  static void place(const UploadPiece& piece, const WeightPlacement& to, const std::byte* raw,
                    Device& device) {
    const TargetRows at = rows_of(piece, to);
    std::byte* dst = to.dst + at.window_row * to.stride * dtype_bytes(to.type);
    if (!is_staged(to))
      return transfer(piece, {to.col, to.col + to.cols}, at.rows, raw, dst, to.stride, device);
    const Range cols = needed_columns(to);
    const int64_t rows = to.quantised() ? piece.rows : at.rows;
    transfer(piece, cols, rows, raw, device.staging.data(), cols.size(), device);
    const cuda::StoredType raw_type = stored_type(piece.source->dtype);
    if (to.quantised()) {
      const int64_t first_scale =
          is_block_scaled(to.codes) ? at.window_row / kFp8BlockSize * to.scale_stride : at.window_row;
      cuda::quantize_weight({.type = to.codes,
                             .src = device.staging.data(),
                             .src_type = raw_type,
                             .src_stride = cols.size(),
                             .codes = reinterpret_cast<fp8_e4m3*>(dst),
                             .stride = to.stride,
                             .scales = to.scales + first_scale,
                             .scale_stride = to.scale_stride,
                             .rows = rows,
                             .cols = cols.size(),
                             .code_rows = at.rows,
                             .first_code_col = to.col - cols.begin,
                             .code_cols = to.cols},
                            device.launch());
    } else {
      cuda::convert_weight({.src = device.staging.data(),
                            .src_type = raw_type,
                            .src_stride = cols.size(),
                            .dst = dst,
                            .dst_type = stored_type(to.type),
                            .dst_stride = to.stride,
                            .rows = rows,
                            .cols = to.cols},
                           device.launch());
    }
  }

  // Copies or generates the first `rows` rows of the piece's columns to device memory.
  static void transfer(const UploadPiece& piece, Range cols, int64_t rows, const std::byte* raw,
                       std::byte* dst, int64_t stride, const Device& device) {
    const TensorSource& from = *piece.source;
    if (raw == nullptr) return generate(piece, cols, rows, dst, stride, device);
    const int64_t size = dtype_bytes(piece.raw_type());
    const auto row_bytes = static_cast<size_t>(cols.size() * size);
    const std::byte* src = raw + cols.begin * size;
    if (cols.size() == from.cols && (stride == from.cols || rows == 1)) {
      return copy_to_device(dst, src, static_cast<size_t>(rows) * row_bytes, device.stream.handle());
    }
    copy_to_device_2d(dst, static_cast<size_t>(stride * size), src, static_cast<size_t>(from.cols * size),
                      row_bytes, static_cast<size_t>(rows), device.stream.handle());
  }

  static void generate(const UploadPiece& piece, Range cols, int64_t rows, std::byte* dst, int64_t stride,
                       const Device& device) {
    const TensorSource& from = *piece.source;
    const RandomTensor::Recipe& recipe = from.random->recipe();
    cuda::random_weight({.kind = random_kind(recipe.kind),
                         .type = stored_type(from.dtype),
                         .key_low = recipe.key_low,
                         .key_high = recipe.key_high,
                         .offset = recipe.offset,
                         .scale = recipe.scale,
                         .upper_threshold = recipe.upper_threshold,
                         .first = piece.repeat ? 0 : piece.row * from.cols + cols.begin,
                         .src_cols = piece.repeat ? 0 : from.cols,
                         .dst = dst,
                         .dst_stride = stride,
                         .rows = rows,
                         .cols = cols.size()},
                        device.launch());
  }

  // Waits until the slot's pinned buffer may be overwritten, and fills it with the piece's values.
  const std::byte* fill_slot(const UploadPiece& piece) {
    for (const auto& device : devices_) device->copied[slot_].wait();
    std::byte* raw = pinned_[slot_].data();
    if (piece.widened) {
      widen(piece, raw);
    } else if (piece.repeat) {
      const std::span<const std::byte> value = piece.source->bytes;
      reader_.read(value, raw);
      for (int64_t i = 1; i < piece.rows; ++i)
        std::memcpy(raw + static_cast<size_t>(i) * value.size(), raw, value.size());
    } else {
      read(*piece.source, piece.row * piece.source->cols, piece.rows * piece.source->cols, raw);
    }
    return raw;
  }

  // Converts codes to bf16 on the host: those of kv_b, and of linears that are stacked with others in 16
  // bits.
  void widen(const UploadPiece& piece, std::byte* out) const {
    const WeightPlacement& to = *pieces_.targets_of(piece).front().placement;  // all have the same codes
    const int64_t cols = piece.source->cols;
    std::vector<std::byte> codes(static_cast<size_t>(piece.rows * cols));
    read(*piece.source, piece.row * cols, piece.rows * cols, codes.data());
    const std::vector<float> factors = row_scales(to, piece.row, piece.rows);
    const bool in_blocks = is_block_scaled(to.codes);
    std::vector<float> values(static_cast<size_t>(std::min<int64_t>(kFp8BlockSize, piece.rows) * cols));
    for (int64_t row = 0; row < piece.rows; row += kFp8BlockSize) {
      const int64_t num_rows = std::min<int64_t>(kFp8BlockSize, piece.rows - row);
      const int64_t first_factor = in_blocks ? row / kFp8BlockSize * to.code_scales->cols : row;
      dequantize_rows(to.codes, codes.data() + row * cols, num_rows, cols, factors.data() + first_factor,
                      values.data());
      round_to_bf16(DType::kF32, reinterpret_cast<const std::byte*>(values.data()), num_rows * cols,
                    reinterpret_cast<bf16*>(out) + row * cols);
    }
  }

  // Returns the scales for rows of a widened source in the layout of dequantize_rows: the scales of the rows'
  // blocks (the first row begins a block), or one for each row.
  std::vector<float> row_scales(const WeightPlacement& to, int64_t row, int64_t num_rows) const {
    const TensorSource& scales = *to.code_scales;
    const auto floats = [&](int64_t first, int64_t count) {
      std::vector<std::byte> stored(static_cast<size_t>(count * dtype_bytes(scales.dtype)));
      read(scales, first, count, stored.data());
      std::vector<float> values(static_cast<size_t>(count));
      widen_to_f32(scales.dtype, stored.data(), count, values.data());
      return values;
    };
    if (is_block_scaled(to.codes)) {
      HADAL_CHECK(row % kFp8BlockSize == 0, "pieces of block weights must begin with a block");
      return floats(row / kFp8BlockSize * scales.cols,
                    (num_rows + kFp8BlockSize - 1) / kFp8BlockSize * scales.cols);
    }
    if (scales.num_elements() != 1) return floats(row, num_rows);
    return std::vector<float>(static_cast<size_t>(num_rows), floats(0, 1)[0]);
  }

  // Reads values [first, first + count) of a source as they are stored.
  void read(const TensorSource& from, int64_t first, int64_t count, std::byte* out) const {
    const int64_t size = dtype_bytes(from.dtype);
    if (from.random) return from.random->fill(first, count, out);
    reader_.read(from.bytes.subspan(static_cast<size_t>(first * size), static_cast<size_t>(count * size)),
                 out);
  }

  const UploadPieces& pieces_;
  const ShardReader& reader_;
  std::vector<std::unique_ptr<Device>> devices_;  // as in pieces_.devices
  std::array<PinnedBuffer, kNumSlots> pinned_;
  size_t slot_ = 0;  // the next one
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

// Sets the blocks to zero, because padding is never written. Returns a stream of each rank's device.
std::vector<CudaStream> clear_blocks(std::span<const RankUpload> ranks) {
  std::vector<CudaStream> streams;
  for (const RankUpload& rank : ranks) {
    cuda_set_device(rank.device);
    fill_device(rank.base, 0, static_cast<size_t>(rank.plan->weights.bytes), streams.emplace_back().handle());
  }
  for (const CudaStream& stream : streams) stream.synchronize();
  return streams;
}

}  // namespace

std::vector<DeviceBytes> upload_staging_bytes(std::span<const RankUpload> ranks, int num_threads) {
  const UploadPieces pieces = cut_placements(placements_of(ranks));
  std::vector<DeviceBytes> needed;
  for (size_t i = 0; i < pieces.devices.size(); ++i) {
    needed.push_back({.device = pieces.devices[i],
                      .bytes = num_lanes(pieces, num_threads) * staging_bytes(pieces, static_cast<int>(i))});
  }
  return needed;
}

void upload_weights(std::span<const RankUpload> ranks, std::span<const MappedFile> shards, ThreadPool& pool,
                    const LoadProgress& progress) {
  const ShardReader reader(shards);
  const std::vector<RankPlacements> placements = placements_of(ranks);
  const UploadPieces pieces = cut_placements(placements);
  std::vector<int64_t> staging;
  for (size_t i = 0; i < pieces.devices.size(); ++i)
    staging.push_back(staging_bytes(pieces, static_cast<int>(i)));
  int64_t pinned_bytes = 0;
  size_t total = 0;
  bool random = false;
  for (const UploadPiece& piece : pieces.pieces) {
    total += static_cast<size_t>(piece.raw_bytes());
    if (piece.pinned()) pinned_bytes = std::max(pinned_bytes, piece.raw_bytes());
    random |= !piece.pinned();
  }
  const char* what = random ? "generating weights" : "loading weights";

  const std::vector<CudaStream> streams = clear_blocks(ranks);
  std::vector<std::unique_ptr<Lane>> lanes(static_cast<size_t>(num_lanes(pieces, pool.num_threads())));
  std::atomic<size_t> next_piece{0};
  std::mutex mutex;  // guards done and the callback
  size_t done = 0;
  if (progress) progress(0, total, what);
  pool.run([&](int thread_idx) {
    if (thread_idx >= static_cast<int>(lanes.size())) return;
    auto& lane = lanes[static_cast<size_t>(thread_idx)];
    lane = std::make_unique<Lane>(pieces, pinned_bytes, staging, reader);
    for (size_t i = next_piece++; i < pieces.pieces.size(); i = next_piece++) {
      lane->run(pieces.pieces[i]);
      if (!progress) continue;
      const std::lock_guard lock(mutex);
      done += static_cast<size_t>(pieces.pieces[i].raw_bytes());
      progress(done, total, what);
    }
    lane->finish();
  });
  for (size_t i = 0; i < ranks.size(); ++i) {
    cuda_set_device(ranks[i].device);
    transpose_all(ranks[i].plan->transposes, streams[i]);
  }
  for (const CudaStream& stream : streams) stream.synchronize();
}

}  // namespace hadal
