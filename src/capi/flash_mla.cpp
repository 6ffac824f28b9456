#include "capi/flash_mla.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <exception>
#include <string>
#include <type_traits>

#include "base/version.h"
#include "kernels/cuda/mla/decode/decode.h"
#include "kernels/cuda/mla/gather/flash_layout.h"
#include "kernels/cuda/mla/mla.h"
#include "tensor/cuda.h"

namespace {

using hadal::KvFormat;
using hadal::KvLayout;
using hadal::KvScales;
using hadal::cuda::DecodeGeometry;

static_assert(HADAL_MLA_PAGE == hadal::kPageSize && HADAL_MLA_ROW_DIM == hadal::kKvRowDim &&
              HADAL_MLA_OUT_DIM == hadal::kKvLatentDim &&
              HADAL_MLA_MAX_HEADS == hadal::cuda::kDecodeMaxHeads);
static_assert(std::is_standard_layout_v<hadal_mla_decode_args> &&
              std::is_trivially_copyable_v<hadal_mla_decode_args>);

// InvalidArgument is a caller's mistake, as opposed to a failure of the device or of this library.
class InvalidArgument : public std::exception {
 public:
  explicit InvalidArgument(std::string text) : text_(std::move(text)) {}
  const char* what() const noexcept override { return text_.c_str(); }

 private:
  std::string text_;
};

template <typename... Args>
void require(bool holds, fmt::format_string<Args...> text, Args&&... args) {
  if (!holds) throw InvalidArgument(fmt::format(text, std::forward<Args>(args)...));
}

void tell(const char* text, char* message, size_t message_size) {
  if (message == nullptr || message_size == 0) return;
  const size_t length = std::min(std::strlen(text), message_size - 1);
  std::memcpy(message, text, length);
  message[length] = '\0';
}

// Runs `work`; no exception leaves this function.
template <typename Work>
int guarded(char* message, size_t message_size, Work work) {
  try {
    work();
    return HADAL_MLA_OK;
  } catch (const InvalidArgument& error) {
    tell(error.what(), message, message_size);
    return HADAL_MLA_INVALID;
  } catch (const std::exception& error) {
    tell(error.what(), message, message_size);
    return HADAL_MLA_FAILED;
  }
}

KvLayout layout_of(int32_t cache) {
  switch (cache) {
    case HADAL_MLA_BF16:
      return {KvFormat::kBF16, KvScales::kPerToken};
    case HADAL_MLA_F16:
      return {KvFormat::kF16, KvScales::kPerToken};
    case HADAL_MLA_E4M3_PER_128:
      return {KvFormat::kFp8E4M3, KvScales::kPer128};
    case HADAL_MLA_E4M3_PER_TOKEN:
      return {KvFormat::kFp8E4M3, KvScales::kPerToken};
    case HADAL_MLA_E5M2:
      return {KvFormat::kFp8E5M2, KvScales::kPerToken};
    default:
      throw InvalidArgument(
          fmt::format("cache is {}; allowed: 0 (bf16), 1 (f16), 2 (e4m3, one scale per "
                      "128 values), 3 (e4m3, one per token), 4 (e5m2)",
                      cache));
  }
}

bool is_fp8(KvFormat format) {
  return format == KvFormat::kFp8E4M3 || format == KvFormat::kFp8E5M2;
}

// Work is a caller's shape in the form that decode attention supports. A sequence of many query tokens
// becomes several pieces of at most kDecodeMaxQuery tokens, all equally long, and each KV head with its query
// heads is a separate launch.
struct Work {
  hadal::cuda::MlaPlanShape shape;
  int pieces = 1;     // pieces of a sequence
  int piece_len = 1;  // query tokens
  int group = 1;      // query heads of a KV head
  int64_t rows_of_lse = 0;
  bool causal = true;
};

Work work_of(const hadal_mla_shape* shape) {
  require(shape != nullptr, "shape is null");
  const hadal_mla_shape& s = *shape;
  constexpr int64_t kMost = hadal::cuda::kDecodeMaxSeqs;
  require(s.num_seqs >= 1 && s.num_seqs <= kMost, "num_seqs is {}; allowed: 1 to {}", s.num_seqs, kMost);
  require(s.q_len >= 1 && s.q_len <= 65536, "q_len is {}; allowed: 1 to 65536", s.q_len);
  require(s.num_kv_heads >= 1, "num_kv_heads is {}; allowed: 1 or more", s.num_kv_heads);
  require(s.num_heads >= 1 && s.num_heads % s.num_kv_heads == 0,
          "num_heads is {}; allowed: multiples of num_kv_heads, which is {}", s.num_heads, s.num_kv_heads);
  Work work;
  work.group = s.num_heads / s.num_kv_heads;
  require(work.group <= HADAL_MLA_MAX_HEADS, "num_heads / num_kv_heads is {}; allowed: 1 to {}", work.group,
          HADAL_MLA_MAX_HEADS);
  require(s.most_keys >= 0, "most_keys is {}; allowed: 0 (not known) or more", s.most_keys);
  require(s.num_sms >= 1, "num_sms is {}; allowed: 1 or more", s.num_sms);
  const KvLayout layout = layout_of(s.cache);
  require(!is_fp8(layout.format) || s.num_kv_heads == 1, "num_kv_heads is {}; allowed with an FP8 cache: 1",
          s.num_kv_heads);
  for (work.piece_len = std::min(s.q_len, hadal::cuda::kDecodeMaxQuery); s.q_len % work.piece_len != 0;) {
    --work.piece_len;
  }
  work.pieces = s.q_len / work.piece_len;
  require(s.num_seqs * work.pieces <= kMost,
          "num_seqs is {} with q_len {}, which makes {} sequences; allowed: {}", s.num_seqs, s.q_len,
          s.num_seqs * work.pieces, kMost);
  // A piece of one token attends to the same keys with and without the mask; the kernels are faster with it.
  work.causal = s.causal != 0 || work.piece_len == 1;
  work.shape = {.num_seqs = s.num_seqs * work.pieces,
                .q_len = work.piece_len,
                .num_heads = work.group,
                .num_sms = s.num_sms,
                .layout = layout,
                .most_keys = s.most_keys};
  work.rows_of_lse = s.num_seqs * s.q_len * s.num_heads;
  return work;
}

size_t align256(size_t bytes) {
  return (bytes + 255) / 256 * 256;
}

// PlanBuffer divides the two buffers: [decode's plan | page table rows | lengths], [decode's scratch |
// log-sum-exps as made].
struct PlanBuffer {
  void* plan;
  int32_t* seq_idx;
  int32_t* kv_len;
  size_t bytes;
};
PlanBuffer plan_buffer(const Work& work, const DecodeGeometry& geometry, void* base) {
  const size_t plan = align256(hadal::cuda::decode_plan_bytes(geometry));
  const size_t ints = align256(static_cast<size_t>(work.shape.num_seqs) * sizeof(int32_t));
  auto* at = static_cast<std::byte*>(base);
  if (at == nullptr) return {nullptr, nullptr, nullptr, plan + 2 * ints};
  return {at, reinterpret_cast<int32_t*>(at + plan), reinterpret_cast<int32_t*>(at + plan + ints),
          plan + 2 * ints};
}

void require_aligned(const void* pointer, const char* name) {
  require(pointer != nullptr, "{} is null", name);
  require(reinterpret_cast<uintptr_t>(pointer) % 16 == 0, "{} is at {}; allowed: addresses that 16 divides",
          name, pointer);
}

hadal::cuda::Launch launch_on(void* stream, int num_sms) {
  return {.stream = {stream}, .num_sms = num_sms};
}

void decode(const hadal_mla_decode_args& a, void* stream) {
  const Work work = work_of(&a.shape);
  const KvLayout layout = work.shape.layout;
  require_aligned(a.q, "q");
  require_aligned(a.out, "out");
  require_aligned(a.plan, "plan");
  require_aligned(a.scratch, "scratch");
  require(a.lse != nullptr, "lse is null");
  // A page table without columns is never read, so any valid address serves.
  const int32_t* page_table = a.page_table != nullptr ? a.page_table : static_cast<const int32_t*>(a.plan);
  require(a.page_table_stride >= 0, "page_table_stride is {}; allowed: 0 or more", a.page_table_stride);
  require(a.softmax_scale > 0.0F && std::isfinite(a.softmax_scale), "softmax_scale is {}; allowed: above 0",
          a.softmax_scale);
  const int64_t record = layout.row_bytes();
  // Without pages there are no keys, so the pool's address only has to be valid.
  const auto* pool = static_cast<const std::byte*>(a.pool != nullptr ? a.pool : a.plan);
  const bool dense = a.pool == nullptr || (a.record_stride == record && a.page_stride == layout.page_bytes());
  if (!dense) {
    require(!is_fp8(layout.format),
            "page_stride and record_stride are {} and {}; allowed with an FP8 cache: {} and {}",
            a.page_stride, a.record_stride, layout.page_bytes(), record);
    for (const auto& [stride, name] :
         {std::pair{a.page_stride, "page_stride"}, std::pair{a.record_stride, "record_stride"},
          std::pair{a.shape.num_kv_heads > 1 ? a.head_stride : 0, "head_stride"}}) {
      require(stride >= 0 && stride % 16 == 0, "{} is {} bytes; allowed: multiples of 16", name, stride);
    }
    require(a.record_stride >= record, "record_stride is {} bytes; allowed: {} or more", a.record_stride,
            record);
    require(a.page_stride >= record, "page_stride is {} bytes; allowed: {} or more", a.page_stride, record);
  }
  require_aligned(pool, "pool");

  const DecodeGeometry geometry = hadal::cuda::decode_geometry(work.shape);
  const PlanBuffer plan = plan_buffer(work, geometry, a.plan);
  auto* made_lse = reinterpret_cast<float*>(static_cast<std::byte*>(a.scratch) +
                                            align256(hadal::cuda::decode_scratch_bytes(geometry)));
  const hadal::cuda::Launch launch = launch_on(stream, a.shape.num_sms);
  const int64_t rows = a.shape.num_seqs * a.shape.q_len * work.group;  // rows of a KV head
  for (int head = 0; head < a.shape.num_kv_heads; ++head) {
    hadal::cuda::mla_decode({.shape = work.shape,
                             .q = static_cast<const std::byte*>(a.q) + head * rows * HADAL_MLA_ROW_DIM * 2,
                             .out = static_cast<std::byte*>(a.out) + head * rows * HADAL_MLA_OUT_DIM * 2,
                             .lse = made_lse + head * rows,
                             .kv = {.pool = pool + (head > 0 ? head * a.head_stride : 0),
                                    .layout = layout,
                                    .page_table = page_table,
                                    .page_table_stride = a.page_table_stride,
                                    .record_stride = dense ? 0 : a.record_stride,
                                    .page_stride = dense ? 0 : a.page_stride},
                             .seq_idx = plan.seq_idx,
                             .kv_len = plan.kv_len,
                             .softmax_scale = a.softmax_scale,
                             .causal = work.causal,
                             .plan = plan.plan,
                             .scratch = a.scratch},
                            geometry, launch);
  }
  hadal::cuda::flash_lse({.lse = made_lse,
                          .out = a.lse,
                          .num_seqs = a.shape.num_seqs,
                          .q_len = a.shape.q_len,
                          .num_kv_heads = a.shape.num_kv_heads,
                          .group = work.group},
                         launch);
}

}  // namespace

extern "C" {

int hadal_mla_abi(void) {
  return HADAL_MLA_ABI;
}

const char* hadal_mla_version(void) {
  return hadal::version().data();  // terminated, because it is a literal
}

int hadal_mla_device(int device, int32_t* num_sms, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    require(num_sms != nullptr, "num_sms is null");
    const hadal::CudaDeviceInfo info = hadal::cuda_device_info(device);
    require(info.compute_major == 9 && info.compute_minor == 0,
            "device {} is {} of compute capability {}.{}; allowed: 9.0 (Hopper)", device, info.name,
            info.compute_major, info.compute_minor);
    static std::atomic<int> used{-1};
    int first = -1;
    if (!used.compare_exchange_strong(first, device)) {
      require(first == device,
              "device is {}; allowed: {}, which this process has used before (one GPU per process)", device,
              first);
    }
    *num_sms = info.num_sms;
  });
}

int hadal_mla_workspace(const hadal_mla_shape* shape, size_t* plan_bytes, size_t* scratch_bytes,
                        char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const Work work = work_of(shape);
    require(plan_bytes != nullptr && scratch_bytes != nullptr, "plan_bytes or scratch_bytes is null");
    const DecodeGeometry geometry = hadal::cuda::decode_geometry(work.shape);
    *plan_bytes = plan_buffer(work, geometry, nullptr).bytes;
    *scratch_bytes = align256(hadal::cuda::decode_scratch_bytes(geometry)) +
                     static_cast<size_t>(work.rows_of_lse) * sizeof(float);
  });
}

int hadal_mla_plan(const hadal_mla_shape* shape, const int32_t* cache_seqlens, void* plan, void* stream,
                   char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    const Work work = work_of(shape);
    require(cache_seqlens != nullptr, "cache_seqlens is null");
    require_aligned(plan, "plan");
    const DecodeGeometry geometry = hadal::cuda::decode_geometry(work.shape);
    const PlanBuffer buffer = plan_buffer(work, geometry, plan);
    const hadal::cuda::Launch launch = launch_on(stream, shape->num_sms);
    hadal::cuda::flash_rows({.cache_seqlens = cache_seqlens,
                             .num_seqs = shape->num_seqs,
                             .pieces = work.pieces,
                             .piece_len = work.piece_len,
                             .causal = shape->causal != 0,
                             .seq_idx = buffer.seq_idx,
                             .kv_len = buffer.kv_len},
                            launch);
    hadal::cuda::mla_decode_plan(geometry, buffer.kv_len, buffer.plan, launch);
  });
}

int hadal_mla_decode(const hadal_mla_decode_args* args, void* stream, char* message, size_t message_size) {
  return guarded(message, message_size, [&] {
    require(args != nullptr, "args is null");
    decode(*args, stream);
  });
}

}  // extern "C"
