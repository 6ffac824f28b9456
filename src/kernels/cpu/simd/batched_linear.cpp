// Computes one small product per head. W [n, k] uses the common engine; W stored as [k, n] needs no
// transposition, because its columns are already lanes.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <type_traits>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/simd/batched_linear.cpp"
#include "hwy/foreach_target.h"
// This include must follow foreach_target.h.
#include "base/check.h"
#include "hwy/highway.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/reference/weight_chain.h"
#include "kernels/cpu/simd/gemm_schedule.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/unpack-inl.h"

#ifndef HADAL_KERNELS_CPU_SIMD_BATCHED_LINEAR_ONCE
#define HADAL_KERNELS_CPU_SIMD_BATCHED_LINEAR_ONCE
namespace hadal::cpu::simd {

// ColumnsTask is a range of columns of one head's product, with W stored as [k, n].
struct ColumnsTask {
  MatrixWeight w;            // the head's matrix
  const float* x = nullptr;  // [m, k], rows x_stride apart
  float* y = nullptr;        // [m, n], rows y_stride apart
  int64_t m = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  int64_t column = 0;
  int64_t num_columns = 0;
  const uint8_t* prefetch = nullptr;  // where this thread's next task begins, or null
};

struct ColumnsKernel {
  int64_t chunk_columns;  // columns per task
  // `run` needs kBlockDepth · panel_rows + m · panel_rows floats of scratch.
  void (*run)(const ColumnsTask& task, float* scratch);
};

}  // namespace hadal::cpu::simd
#endif

HWY_BEFORE_NAMESPACE();
namespace hadal::cpu::simd::HWY_NAMESPACE {
namespace {

#if HWY_NATIVE_FMA

// Sixteen vectors of sums stay in registers; on AVX2, which has 16 registers, eight do. For one token on
// AVX-512 they cover 512 bytes of each bf16 row.
constexpr int kColumnVectors = HWY_TARGET == HWY_AVX2 ? 8 : 16;

// Loads N consecutive weights of one row.
template <class W>
HWY_INLINE VF load_widened(const uint8_t* p) {
  const DU32 du;
  if constexpr (W::kPerWord == 1) {
    return hn::LoadU(DF(), reinterpret_cast<const float*>(p));
  } else if constexpr (W::kPerWord == 2) {
    const hn::Rebind<uint16_t, DU32> d16;
    const VU32 bits = hn::PromoteTo(du, hn::LoadU(d16, reinterpret_cast<const uint16_t*>(p)));
    return hn::BitCast(DF(), hn::ShiftLeft<16>(bits));
  } else if constexpr (std::is_same_v<W, UnpackInt8>) {
    const hn::Rebind<int8_t, DF> d8;
    const hn::RebindToSigned<DF> di;
    return hn::ConvertTo(DF(), hn::PromoteTo(di, hn::LoadU(d8, reinterpret_cast<const int8_t*>(p))));
  } else {
    const hn::Rebind<uint8_t, DU32> d8;
    VU32 high, low;
    UnpackE4m3::look_up(hn::PromoteTo(du, hn::LoadU(d8, p)), high, low);
    // Only byte 0 of each word is a code; the others must not reach the float.
    const VU32 bits = hn::Or(hn::ShiftLeft<24>(high), hn::ShiftRight<8>(hn::ShiftLeft<24>(low)));
    return hn::BitCast(DF(), bits);
  }
}

// Computes V · N whole columns for M tokens: each row's run of weights is read and widened once, in order.
template <class W, int M, int V>
HWY_NOINLINE void stream_columns(const ColumnsTask& task, int64_t column) {
  const DF df;
  const int64_t stride = task.w.row_stride * kWeightBytes<W>;
  const uint8_t* row = static_cast<const uint8_t*>(task.w.data) + column * kWeightBytes<W>;
  const uint8_t* prefetch =
      task.prefetch == nullptr ? nullptr : task.prefetch + (column - task.column) * kWeightBytes<W>;
  constexpr int64_t kRunBytes = V * kLanes * kWeightBytes<W>;
  constexpr bool kScaled = W::kPerWord == 4;
  VF acc[M * V];
#pragma GCC unroll 16
  for (int i = 0; i < M * V; ++i) acc[i] = hn::Zero(df);
  for (int64_t k0 = 0; k0 < task.w.k; k0 += kBlockDepth) {
    const int64_t k_end = std::min(task.w.k, k0 + kBlockDepth);
    for (int64_t k = k0; k < k_end; ++k) {
      VF x[M];
#pragma GCC unroll 4
      for (int m = 0; m < M; ++m) x[m] = hn::Set(df, task.x[m * task.x_stride + k]);
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v) {
        const VF w = load_widened<W>(row + v * kLanes * kWeightBytes<W>);
#pragma GCC unroll 4
        for (int m = 0; m < M; ++m) acc[m * V + v] = hn::MulAdd(x[m], w, acc[m * V + v]);
      }
      row += stride;
      if (prefetch != nullptr) {
#pragma GCC unroll 16
        for (int64_t line = 0; line < kRunBytes; line += 64) __builtin_prefetch(prefetch + line, 0, 2);
        prefetch += stride;
      }
    }
    if constexpr (kScaled) {
      const float* scales = task.w.scales + k0 / kBlockDepth * task.w.scale_stride;
      for (int m = 0; m < M; ++m) {
        float* y = task.y + m * task.y_stride + column;
        for (int v = 0; v < V; ++v) {
          const VF scale = hn::Set(df, scales[(column + v * kLanes) / kBlockDepth]);
          const VF before = k0 == 0 ? hn::Zero(df) : hn::LoadU(df, y + v * kLanes);
          hn::StoreU(hn::MulAdd(acc[m * V + v], scale, before), df, y + v * kLanes);
          acc[m * V + v] = hn::Zero(df);
        }
      }
    }
  }
  if constexpr (!kScaled) {
    for (int m = 0; m < M; ++m) {
#pragma GCC unroll 16
      for (int v = 0; v < V; ++v)
        hn::StoreU(acc[m * V + v], df, task.y + m * task.y_stride + column + v * kLanes);
    }
  }
}

// Computes a whole chunk of columns for M tokens. It processes as many columns at a time as have their sums
// in registers.
template <class W, int M>
void stream_chunk(const ColumnsTask& task) {
  constexpr int kVectors = kColumnVectors / (M <= 2 ? M : 4);
  for (int64_t column = task.column; column < task.column + task.num_columns; column += kVectors * kLanes)
    stream_columns<W, M, kVectors>(task, column);
}

// Supports any number of tokens and columns: 2N columns at a time are widened and multiplied by register
// tiles.
template <class W>
HWY_NOINLINE void tile_columns(const ColumnsTask& task, float* scratch) {
  const DF df;
  const int64_t stride = task.w.row_stride * kWeightBytes<W>;
  float* block = scratch;
  float* sums = scratch + kBlockDepth * kPanelRows;
  for (int64_t column = task.column; column < task.column + task.num_columns; column += kPanelRows) {
    const int64_t width = std::min<int64_t>(kPanelRows, task.column + task.num_columns - column);
    for (int64_t k0 = 0; k0 < task.w.k; k0 += kBlockDepth) {
      const int64_t depth = std::min(kBlockDepth, task.w.k - k0);
      const uint8_t* row = static_cast<const uint8_t*>(task.w.data) + k0 * stride + column * kWeightBytes<W>;
      for (int64_t k = 0; k < depth; ++k, row += stride) {
        uint8_t copy[kPanelRows * 4] = {};
        const uint8_t* source = row;
        if (width < kPanelRows) {
          std::memcpy(copy, row, width * kWeightBytes<W>);
          source = copy;
        }
        hn::StoreU(load_widened<W>(source), df, block + k * kPanelRows);
        hn::StoreU(load_widened<W>(source + kLanes * kWeightBytes<W>), df, block + k * kPanelRows + kLanes);
      }
      float scales[2];
      TileArgs args{.a_stride = task.x_stride, .b = block, .b_stride = kPanelRows, .k = depth};
      if constexpr (W::kPerWord == 4) {
        scales[0] = scales[1] = task.w.scales[k0 / kBlockDepth * task.w.scale_stride + column / kBlockDepth];
        args.scales = scales;
      }
      for (int64_t m = 0; m < task.m; m += kMaxTile) {
        args.a = task.x + m * task.x_stride + k0;
        args.c_in = k0 == 0 ? nullptr : sums + m * kPanelRows;
        args.c_in_stride = kPanelRows;
        args.c_out = sums + m * kPanelRows;
        args.c_out_stride = kPanelRows;
        gemm_tile(static_cast<int>(std::min<int64_t>(kMaxTile, task.m - m)), args);
      }
    }
    for (int64_t m = 0; m < task.m; ++m) {
      std::memcpy(task.y + m * task.y_stride + column, sums + m * kPanelRows, width * sizeof(float));
    }
  }
}

template <class W>
void run_typed_columns(const ColumnsTask& task, float* scratch) {
  if (task.num_columns == kColumnVectors * kLanes) {
    switch (task.m) {
      case 1:
        return stream_chunk<W, 1>(task);
      case 2:
        return stream_chunk<W, 2>(task);
      case 3:
        return stream_chunk<W, 3>(task);
      case 4:
        return stream_chunk<W, 4>(task);
      default:
        break;
    }
  }
  tile_columns<W>(task, scratch);
}

void run_columns(const ColumnsTask& task, float* scratch) {
  switch (task.w.type) {
    case WeightType::kF32:
      return run_typed_columns<UnpackF32>(task, scratch);
    case WeightType::kBF16:
      return run_typed_columns<UnpackBf16>(task, scratch);
    case WeightType::kFp8Block:
      return run_typed_columns<UnpackE4m3>(task, scratch);
    case WeightType::kInt8Block:
      return run_typed_columns<UnpackInt8>(task, scratch);
    case WeightType::kF16:
    case WeightType::kFp8Channel:
    case WeightType::kInt8Channel:
      break;  // refused below
  }
}

#else  // no fused multiply-add instruction

constexpr int kColumnVectors = 8;

void run_columns(const ColumnsTask& task, float*) {
  for (int64_t n = task.column; n < task.column + task.num_columns; ++n) {
    const reference::WeightColumn column(task.w, /*transposed=*/true, n, task.w.k);
    for (int64_t m = 0; m < task.m; ++m) {
      task.y[m * task.y_stride + n] = column.chain(task.x + m * task.x_stride);
    }
  }
}

#endif

constexpr ColumnsKernel kColumnsKernel{kColumnVectors * kLanes, run_columns};

}  // namespace

const ColumnsKernel* columns_kernel() {
  return &kColumnsKernel;
}

}  // namespace hadal::cpu::simd::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace hadal::cpu::simd {

HWY_EXPORT(columns_kernel);

namespace {

MatrixWeight head_weight(const BatchedLinearParams& p, int64_t head) {
  MatrixWeight w = p.w;
  w.data = static_cast<const uint8_t*>(w.data) + head * p.head_stride * weight_element_bytes(w.type);
  if (w.scales != nullptr) w.scales += head * p.scale_head_stride;
  return w;
}

void run_transposed(const BatchedLinearParams& p, Context& context) {
  const ColumnsKernel& kernel = *HWY_DYNAMIC_DISPATCH(columns_kernel)();
  const int64_t num_chunks = (p.w.n + kernel.chunk_columns - 1) / kernel.chunk_columns;
  const int64_t scratch_floats = engine_scratch_floats(engine(), p.m);
  float* scratch = scratch_array<float>(context, scratch_floats * context.pool.num_threads()).data();
  const auto make_task = [&](int64_t index) {
    const int64_t head = index / num_chunks;
    const int64_t column = index % num_chunks * kernel.chunk_columns;
    return ColumnsTask{.w = head_weight(p, head),
                       .x = p.x + head * p.x_head_stride,
                       .y = p.y + head * p.y_head_stride,
                       .m = p.m,
                       .x_stride = p.x_stride,
                       .y_stride = p.y_stride,
                       .column = column,
                       .num_columns = std::min(kernel.chunk_columns, p.w.n - column)};
  };
  const int64_t num_tasks = p.num_heads * num_chunks;
  run_phases(
      context.pool, {&num_tasks, 1}, [&](const PhaseTask& current, const PhaseTask& next, int thread_idx) {
        ColumnsTask task = make_task(current.task);
        if (next.phase >= 0) {
          const ColumnsTask after = make_task(next.task);
          task.prefetch =
              static_cast<const uint8_t*>(after.w.data) + after.column * weight_element_bytes(after.w.type);
        }
        kernel.run(task, scratch + thread_idx * scratch_floats);
      });
}

}  // namespace

void batched_linear(const BatchedLinearParams& p, Context& context) {
  if (p.m <= 0 || p.num_heads <= 0) return;
  reference::check_scales(p.w);
  HADAL_CHECK(!is_channel_scaled(p.w.type), "channel weights are widened before batched products");
  HADAL_CHECK(p.w.type != WeightType::kF16, "on the CPU no weights are float16");
  HADAL_CHECK_GT(p.w.k, 0);
  if (p.transposed) return run_transposed(p, context);
  check_weight(p.w);
  const Engine& e = engine();
  GemmPlan plan;
  plan.max_m = p.m;
  plan.packs = TaskList<PackJob>(context, p.num_heads);
  plan.products = TaskList<Product>(context, p.num_heads);
  float* packed = p.m > 1 ? scratch_array<float>(context, p.num_heads * p.m * p.w.k).data() : nullptr;
  for (int64_t head = 0; head < p.num_heads; ++head) {
    const float* x = p.x + head * p.x_head_stride;
    if (p.m > 1) {
      float* own = packed + head * p.m * p.w.k;
      add_pack(e, plan.packs, {.x = x, .x_stride = p.x_stride, .m = p.m, .k = p.w.k, .packed = own});
      x = own;
    }
    add_product(e, plan.products,
                {.w = head_weight(p, head),
                 .x = x,
                 .y = p.y + head * p.y_head_stride,
                 .m = p.m,
                 .y_stride = p.y_stride});
  }
  run_plan(plan, context);
}

}  // namespace hadal::cpu::simd
#endif
