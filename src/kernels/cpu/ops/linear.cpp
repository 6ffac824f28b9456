#include "kernels/cpu/ops/linear.h"

#include <vector>

#include "kernels/cpu/ops/dispatch.h"
#include "kernels/params/matrix_window.h"

namespace hadal {
namespace {

constexpr int64_t kHeadRows = 256;  // rows of kv_b_proj per head: 128 of W_UK, 128 of W_UV
constexpr int64_t kNope = 128;
constexpr int64_t kLatent = 512;

BatchedLinearParams head_product(const Tensor& x, const MatrixWeight& kv_b, const Tensor& y) {
  HADAL_CHECK_EQ(x.rank, 3);
  HADAL_CHECK_EQ(y.rank, 3);
  HADAL_CHECK_EQ(x.shape[0], y.shape[0]);
  HADAL_CHECK_EQ(x.shape[1], y.shape[1]);
  HADAL_CHECK_EQ(kv_b.n, x.shape[1] * kHeadRows);
  HADAL_CHECK_EQ(kv_b.k, kLatent);
  return {.x = x.ptr<const float>(),
          .y = y.ptr<float>(),
          .m = x.shape[0],
          .num_heads = x.shape[1],
          .x_stride = x.stride[0],
          .x_head_stride = x.stride[1],
          .y_stride = y.stride[0],
          .y_head_stride = y.stride[1],
          .w = {},
          .head_stride = kHeadRows * kv_b.row_stride,
          .scale_head_stride = kHeadRows / 128 * kv_b.scale_stride,
          .transposed = false};
}

LinearParams linear_params(const Tensor& x, const MatrixWeight& w, const Tensor& y) {
  HADAL_CHECK_EQ(x.rank, 2);
  HADAL_CHECK_EQ(y.rank, 2);
  HADAL_CHECK_EQ(x.shape[1], w.k);
  HADAL_CHECK_EQ(y.shape[1], w.n);
  HADAL_CHECK_EQ(x.shape[0], y.shape[0]);
  HADAL_CHECK(x.stride[1] == 1 && y.stride[1] == 1, "rows must be dense");
  return {.x = x.ptr<const float>(),
          .y = y.ptr<float>(),
          .m = x.shape[0],
          .x_stride = x.stride[0],
          .y_stride = y.stride[0],
          .w = w};
}

}  // namespace

void linear(const Tensor& x, const MatrixWeight& w, const Tensor& y, ExecContext& exec) {
  const LinearParams params = linear_params(x, w, y);
  if (params.m == 0) return;
  HADAL_DISPATCH_CPU(linear, params, exec);
}

void linear_group(const Tensor& x, std::initializer_list<LinearOutput> outputs, ExecContext& exec) {
  HADAL_CHECK(exec.device.type == DeviceType::kCpu, "linear_group runs on the CPU only");
  if (exec.kernels == KernelSet::kReference) {
    for (const LinearOutput& output : outputs) linear(x, output.w, output.y, exec);
    return;
  }
  std::vector<LinearParams> group;
  for (const LinearOutput& output : outputs) group.push_back(linear_params(x, output.w, output.y));
  if (group.empty() || group.front().m == 0) return;
  WorkspaceScratch scratch(exec.workspace);
  cpu::Context context{exec.pool, scratch};
  cpu::simd::linear_group(group, context);
}

void absorb_query(const Tensor& q_nope, const MatrixWeight& kv_b, const Tensor& q_latent, ExecContext& exec) {
  HADAL_CHECK_GE(q_nope.shape[2], kNope);
  HADAL_CHECK_GE(q_latent.shape[2], kLatent);
  if (q_nope.shape[0] == 0) return;
  BatchedLinearParams params = head_product(q_nope, kv_b, q_latent);
  params.w = row_window(kv_b, 0, kNope);
  params.w.n = kLatent;  // n outputs, k inputs, while the matrix itself is stored [k, n]
  params.w.k = kNope;
  params.transposed = true;
  HADAL_DISPATCH_CPU(batched_linear, params, exec);
}

void expand_value(const Tensor& o_latent, const MatrixWeight& kv_b, const Tensor& o, ExecContext& exec) {
  HADAL_CHECK_EQ(o_latent.shape[2], kLatent);
  HADAL_CHECK_EQ(o.shape[2], kHeadRows - kNope);
  if (o_latent.shape[0] == 0) return;
  BatchedLinearParams params = head_product(o_latent, kv_b, o);
  params.w = row_window(kv_b, kNope, kHeadRows - kNope);
  HADAL_DISPATCH_CPU(batched_linear, params, exec);
}

void mlp(const Tensor& x, const MlpWeights& weights, const Tensor& y, ExecContext& exec) {
  HADAL_CHECK(x.rank == 2 && x.is_contiguous() && y.is_contiguous(), "dense rows");
  HADAL_CHECK_EQ(x.shape[1], weights.gate.k);
  HADAL_CHECK_EQ(y.shape[1], weights.down.n);
  HADAL_CHECK_EQ(weights.gate.n, weights.down.k);
  HADAL_CHECK_EQ(weights.up.n, weights.down.k);
  HADAL_CHECK_EQ(x.shape[0], y.shape[0]);
  if (x.shape[0] == 0) return;
  const MlpParams params{.x = x.ptr<const float>(), .y = y.ptr<float>(), .m = x.shape[0], .weights = weights};
  HADAL_DISPATCH_CPU(mlp, params, exec);
}

}  // namespace hadal
