#include "bench/cuda/library_int8.h"

#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <array>
#include <limits>

#include "base/check.h"
#include "bench/cuda/graph_timer.h"
#include "bench/cuda/random_operands.h"

namespace hadal::bench {
namespace {

constexpr size_t kWorkspaceBytes = size_t{64} << 20;
constexpr size_t kMostActivationBytes = size_t{512} << 20;
constexpr int kMostAlgorithms = 16;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(fmt::format("cuBLASLt: {} failed: {}", what, cublasLtGetStatusString(status)));
}

}  // namespace

// Row-major y[m, n] is column-major yᵀ = (Wᵀ)ᵀ · xᵀ: the library's A is W (k × n, transposed), its B is x.
struct LibraryInt8::Impl {
  ProductShape shape;
  CudaStream& stream;
  int sets, x_sets;
  DeviceBuffer w, x, y, workspace;
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t description = nullptr;
  cublasLtMatrixLayout_t w_layout = nullptr, x_layout = nullptr, y_layout = nullptr;
  cublasLtMatmulAlgo_t algorithm{};

  Impl(const ProductShape& s, CudaStream& on)
      : shape(s),
        stream(on),
        sets(num_rotating_sets(static_cast<size_t>(s.n * s.k))),
        x_sets(static_cast<int>(std::clamp<size_t>(kMostActivationBytes / (s.m * s.k), 1, sets))),
        w(random_int8(s.n * s.k * sets, on)),
        x(random_int8(s.m * s.k * x_sets, on)),
        y(s.m * s.n * 4),
        workspace(kWorkspaceBytes) {
    check(cublasLtCreate(&handle), "creating its handle");
    check(cublasLtMatmulDescCreate(&description, CUBLAS_COMPUTE_32I, CUDA_R_32I), "describing a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(description, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof transposed),
          "describing a product");
    check(cublasLtMatrixLayoutCreate(&w_layout, CUDA_R_8I, s.k, s.n, s.k), "describing W");
    check(cublasLtMatrixLayoutCreate(&x_layout, CUDA_R_8I, s.k, s.m, s.k), "describing x");
    check(cublasLtMatrixLayoutCreate(&y_layout, CUDA_R_32I, s.n, s.m, s.n), "describing y");
  }
  ~Impl() {
    for (cublasLtMatrixLayout_t layout : {w_layout, x_layout, y_layout}) {
      if (layout != nullptr) cublasLtMatrixLayoutDestroy(layout);
    }
    if (description != nullptr) cublasLtMatmulDescDestroy(description);
    if (handle != nullptr) cublasLtDestroy(handle);
  }

  cublasStatus_t multiply(int call) const {
    const int32_t one = 1;
    const int32_t zero = 0;
    return cublasLtMatmul(handle, description, &one, w.as<int8_t>() + call % sets * (shape.n * shape.k),
                          w_layout, x.as<int8_t>() + call % x_sets * (shape.m * shape.k), x_layout, &zero,
                          y.data(), y_layout, y.data(), y_layout, &algorithm, workspace.data(),
                          kWorkspaceBytes, static_cast<cudaStream_t>(stream.handle().native));
  }

  bool choose() {
    cublasLtMatmulPreference_t preference = nullptr;
    check(cublasLtMatmulPreferenceCreate(&preference), "stating preferences");
    const size_t bytes = kWorkspaceBytes;
    cublasStatus_t status = cublasLtMatmulPreferenceSetAttribute(
        preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &bytes, sizeof bytes);
    std::array<cublasLtMatmulHeuristicResult_t, kMostAlgorithms> found{};
    int count = 0;
    if (status == CUBLAS_STATUS_SUCCESS)
      status = cublasLtMatmulAlgoGetHeuristic(handle, description, w_layout, x_layout, y_layout, y_layout,
                                              preference, kMostAlgorithms, found.data(), &count);
    cublasLtMatmulPreferenceDestroy(preference);
    if (status != CUBLAS_STATUS_SUCCESS) return false;
    double least = std::numeric_limits<double>::infinity();
    cublasLtMatmulAlgo_t best{};
    for (int i = 0; i < count; ++i) {
      if (found[i].state != CUBLAS_STATUS_SUCCESS) continue;
      algorithm = found[i].algo;
      if (multiply(0) != CUBLAS_STATUS_SUCCESS) continue;
      stream.synchronize();
      const double us = time_in_graph(
          stream, [&](int call) { check(multiply(call), "multiplying"); }, std::min(sets, 6), 3);
      if (us >= least) continue;
      least = us;
      best = algorithm;
    }
    algorithm = best;
    return least < std::numeric_limits<double>::infinity();
  }
};

LibraryInt8::LibraryInt8(const ProductShape& shape, CudaStream& stream)
    : impl_(std::make_unique<Impl>(shape, stream)), found_(impl_->choose()) {}
LibraryInt8::~LibraryInt8() = default;

void LibraryInt8::multiply(int call) const {
  check(impl_->multiply(call), "multiplying");
}
int LibraryInt8::sets() const {
  return impl_->sets;
}

}  // namespace hadal::bench
