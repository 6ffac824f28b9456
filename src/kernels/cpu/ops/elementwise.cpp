#include "kernels/cpu/ops/elementwise.h"

#include <cstring>

#include "kernels/cpu/ops/dispatch.h"

namespace hadal {
namespace {

void run_rms_norm(const Tensor& x, float* residual, const float* weight, float eps, const Tensor& y,
                  ExecContext& exec) {
  HADAL_CHECK(x.rank == 2 && y.rank == 2, "the operands must be matrices");
  HADAL_CHECK_EQ(x.shape[0], y.shape[0]);
  HADAL_CHECK_EQ(x.shape[1], y.shape[1]);
  if (x.shape[0] == 0) return;
  const RmsNormParams params{.x = x.ptr<const float>(),
                             .residual = residual,
                             .y = y.ptr<float>(),
                             .weight = weight,
                             .m = x.shape[0],
                             .n = x.shape[1],
                             .x_stride = x.stride[0],
                             .y_stride = y.stride[0],
                             .eps = eps};
  HADAL_DISPATCH_CPU(rms_norm, params, exec);
}

void check_cpu(const ExecContext& exec) {
  HADAL_CHECK(exec.device.type == DeviceType::kCpu, "this operation runs on the CPU only");
}

}  // namespace

void embedding(const Tensor& table, std::span<const int32_t> ids, const Tensor& y, ExecContext& exec) {
  HADAL_CHECK(table.rank == 2 && table.is_contiguous() && y.is_contiguous(), "the rows must be dense");
  HADAL_CHECK(table.dtype == DType::kBF16 || table.dtype == DType::kF32, "table is {}",
              to_string(table.dtype));
  HADAL_CHECK_EQ(table.shape[1], y.shape[1]);
  HADAL_CHECK_EQ(static_cast<int64_t>(ids.size()), y.shape[0]);
  const EmbeddingParams params{
      .table = table.data,
      .type = table.dtype == DType::kF32 ? EmbeddingType::kF32 : EmbeddingType::kBF16,
      .ids = ids.data(),
      .y = y.ptr<float>(),
      .m = y.shape[0],
      .hidden = y.shape[1]};
  HADAL_DISPATCH_CPU(embedding, params, exec);
}

void rms_norm(const Tensor& x, const float* weight, float eps, const Tensor& y, ExecContext& exec) {
  run_rms_norm(x, nullptr, weight, eps, y, exec);
}

void add_rms_norm(const Tensor& x, const Tensor& residual, const float* weight, float eps, const Tensor& y,
                  ExecContext& exec) {
  HADAL_CHECK(residual.is_contiguous() && residual.shape[0] == x.shape[0] && residual.shape[1] == x.shape[1],
              "residual must be dense and have the shape of x");
  run_rms_norm(x, residual.ptr<float>(), weight, eps, y, exec);
}

void rope(const Tensor& x, std::span<const int32_t> positions, const float* cos_sin, ExecContext& exec) {
  HADAL_CHECK_EQ(x.rank, 3);
  HADAL_CHECK_EQ(x.shape[2], 64);
  HADAL_CHECK_EQ(x.shape[0], static_cast<int64_t>(positions.size()));
  const RopeParams params{.x = x.ptr<float>(),
                          .m = x.shape[0],
                          .num_heads = x.shape[1],
                          .row_stride = x.stride[0],
                          .head_stride = x.stride[1],
                          .positions = positions.data(),
                          .cos_sin = cos_sin};
  HADAL_DISPATCH_CPU(rope, params, exec);
}

void copy(const Tensor& x, const Tensor& y, ExecContext& exec) {
  check_cpu(exec);
  HADAL_CHECK(x.rank == y.rank && x.rank == 3 && x.shape == y.shape,
              "x and y must be 3-d tensors of one shape");
  HADAL_CHECK(x.stride[2] == 1 && y.stride[2] == 1, "the last dimension must be dense");
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    for (int64_t j = 0; j < x.shape[1]; ++j) {
      std::memcpy(y.ptr<float>() + i * y.stride[0] + j * y.stride[1],
                  x.ptr<float>() + i * x.stride[0] + j * x.stride[1], x.shape[2] * sizeof(float));
    }
  }
}

void gather_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y, ExecContext& exec) {
  check_cpu(exec);
  HADAL_CHECK_EQ(x.shape[1], y.shape[1]);
  HADAL_CHECK_EQ(static_cast<int64_t>(rows.size()), y.shape[0]);
  for (int64_t i = 0; i < y.shape[0]; ++i) {
    HADAL_CHECK(rows[i] >= 0 && rows[i] < x.shape[0], "row {} of {}", rows[i], x.shape[0]);
    std::memcpy(y.ptr<float>() + i * y.stride[0], x.ptr<float>() + rows[i] * x.stride[0],
                x.shape[1] * sizeof(float));
  }
}

void scatter_rows(const Tensor& x, std::span<const int32_t> rows, const Tensor& y, ExecContext& exec) {
  check_cpu(exec);
  HADAL_CHECK_EQ(x.shape[1], y.shape[1]);
  HADAL_CHECK_EQ(static_cast<int64_t>(rows.size()), x.shape[0]);
  for (int64_t i = 0; i < x.shape[0]; ++i) {
    HADAL_CHECK(rows[i] >= 0 && rows[i] < y.shape[0], "row {} of {}", rows[i], y.shape[0]);
    std::memcpy(y.ptr<float>() + rows[i] * y.stride[0], x.ptr<float>() + i * x.stride[0],
                x.shape[1] * sizeof(float));
  }
}

void add(const Tensor& x, const Tensor& y, ExecContext& exec) {
  check_cpu(exec);
  HADAL_CHECK(x.is_contiguous() && y.is_contiguous() && x.shape == y.shape,
              "x and y must be dense tensors of one shape");
  float* out = x.ptr<float>();
  const float* in = y.ptr<float>();
  for (int64_t i = 0; i < x.num_elements(); ++i) out[i] += in[i];
}

}  // namespace hadal
