// Computes bf16 and float16 products with many rows by cuBLASLt.
//
// Row-major y[m, n] = x[m, k] · W[n, k]ᵀ is column-major yᵀ = (Wᵀ)ᵀ · xᵀ: the library's A is W (k × n,
// transposed), its B is x (k × m), and its D is y (n × m). The algorithm is looked up once per bucket of m
// and kept; reductions of split sums go through the workspace in a fixed order, so equal arguments give equal
// bits.
#include <cublasLt.h>
#include <cuda_runtime_api.h>

#include <bit>
#include <map>
#include <tuple>

#include "base/check.h"
#include "kernels/cuda/gemm/library/supports.h"
#include "kernels/cuda/gemm/variants.h"

namespace hadal::cuda {
namespace {

constexpr size_t kWorkspaceBytes = size_t{48} << 20;
constexpr int kRestBlocks = kWorkspaceBytes / RestWorkspace::kBlockBytes;
constexpr size_t kCountBytes = sizeof(uint32_t) * kRestBlocks * RestWorkspace::kWarps;

void check(cublasStatus_t status, const char* what) {
  if (status != CUBLAS_STATUS_SUCCESS)
    throw Error(fmt::format("cuBLASLt: {} failed: {}", what, cublasLtGetStatusString(status)));
}

template <typename Handle, cublasStatus_t (*kDestroy)(Handle)>
struct Owned {
  Handle handle = nullptr;
  Owned() = default;
  Owned(const Owned&) = delete;
  Owned& operator=(const Owned&) = delete;
  ~Owned() {
    if (handle != nullptr) kDestroy(handle);
  }
};
using Description = Owned<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>;

// Returns m rounded up: it is exact up to 64, then in steps of an eighth to a quarter of m.
int64_t bucket_of(int64_t m) {
  if (m <= 64) return m;
  const auto step = static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(m))) / 8;
  return (m + step - 1) / step * step;
}

// Returns the alignment that a pointer or a row stride of 16-bit values allows, in bytes up to 16.
int alignment_of(uint64_t value) {
  return static_cast<int>(std::min<uint64_t>(16, value & (~value + 1)));
}

}  // namespace

struct GemmLibrary::Impl {
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  uint32_t* counts = nullptr;  // the counts of RestWorkspace
  // the key is m's bucket, n, k, type of the weights, float32 output and alignment of the operands
  std::map<std::tuple<int64_t, int64_t, int64_t, WeightType, bool, int>, cublasLtMatmulAlgo_t> plans;
};

GemmLibrary::GemmLibrary() : impl_(std::make_unique<Impl>()) {
  check(cublasLtCreate(&impl_->handle), "creating its handle");
  cudaError_t status = cudaMalloc(&impl_->workspace, kWorkspaceBytes);
  if (status == cudaSuccess) status = cudaMalloc(reinterpret_cast<void**>(&impl_->counts), kCountBytes);
  if (status == cudaSuccess) status = cudaMemset(impl_->counts, 0, kCountBytes);
  if (status == cudaSuccess) status = cudaStreamSynchronize(nullptr);
  if (status != cudaSuccess) {
    cudaFree(impl_->counts);
    cudaFree(impl_->workspace);
    cublasLtDestroy(impl_->handle);
    throw Error(fmt::format("cuBLASLt: no {} MB of device memory for its workspace: {}",
                            kWorkspaceBytes >> 20, cudaGetErrorString(status)));
  }
}

GemmLibrary::~GemmLibrary() {
  cudaFree(impl_->counts);
  cudaFree(impl_->workspace);
  cublasLtDestroy(impl_->handle);
}

RestWorkspace rest_workspace(GemmLibrary& library) {
  return {.sums = library.impl().workspace, .counts = library.impl().counts, .blocks = kRestBlocks};
}

void cublaslt_linear(const DenseLinearParams& p, GemmLibrary& library, const Launch& launch) {
  HADAL_CHECK(library::supports(linear_shape(p)) && p.x != nullptr,
              "cuBLASLt is used only for 16-bit operands");
  HADAL_CHECK((p.y != nullptr) != (p.y_f32 != nullptr), "one of y and y_f32 must be set");
  if (p.m == 0) return;
  GemmLibrary::Impl& impl = library.impl();
  const bool f32 = p.y_f32 != nullptr;
  const cudaDataType_t type = p.w.type == WeightType::kF16 ? CUDA_R_16F : CUDA_R_16BF;
  void* y = f32 ? static_cast<void*>(p.y_f32) : p.y;

  Description description;
  check(cublasLtMatmulDescCreate(&description.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
        "describing a product");
  const cublasOperation_t transposed = CUBLAS_OP_T;
  check(cublasLtMatmulDescSetAttribute(description.handle, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                       sizeof transposed),
        "describing a product");
  const auto layouts = [&](int64_t m, Layout& w, Layout& x, Layout& out) {
    const auto n = static_cast<uint64_t>(p.w.n);
    const auto k = static_cast<uint64_t>(p.w.k);
    check(cublasLtMatrixLayoutCreate(&w.handle, type, k, n, p.w.row_stride), "describing W");
    check(cublasLtMatrixLayoutCreate(&x.handle, type, k, static_cast<uint64_t>(m), p.x_stride),
          "describing x");
    check(cublasLtMatrixLayoutCreate(&out.handle, f32 ? CUDA_R_32F : type, n, static_cast<uint64_t>(m),
                                     p.y_stride),
          "describing y");
  };
  const auto choose = [&](int64_t m) {
    Layout w, x, out;
    layouts(m, w, x, out);
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(&preference.handle), "stating preferences");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof value),
            "stating preferences");
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));  // none is always allowed
    const auto alignment = [](uint64_t pointer, uint64_t row_bytes) {
      return static_cast<uint32_t>(alignment_of(pointer | row_bytes));
    };
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES,
           alignment(reinterpret_cast<uintptr_t>(p.w.data), static_cast<uint64_t>(p.w.row_stride) * 2));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
           alignment(reinterpret_cast<uintptr_t>(p.x), static_cast<uint64_t>(p.x_stride) * 2));
    const uint32_t out_alignment =
        alignment(reinterpret_cast<uintptr_t>(y), static_cast<uint64_t>(p.y_stride) * (f32 ? 4 : 2));
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, out_alignment);
    prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, out_alignment);
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(impl.handle, description.handle, w.handle, x.handle, out.handle,
                                         out.handle, preference.handle, 1, &result, &found),
          "choosing an algorithm");
    HADAL_CHECK(found == 1, "cuBLASLt has no algorithm for m {}, n {}, k {}", m, p.w.n, p.w.k);
    return result.algo;
  };

  const int alignment =
      alignment_of(reinterpret_cast<uintptr_t>(p.w.data) | reinterpret_cast<uintptr_t>(p.x) |
                   reinterpret_cast<uintptr_t>(y) | static_cast<uint64_t>(p.w.row_stride) * 2 |
                   static_cast<uint64_t>(p.x_stride) * 2 | static_cast<uint64_t>(p.y_stride) * 2);
  Layout w, x, out;
  layouts(p.m, w, x, out);
  const auto usable = [&](const cublasLtMatmulAlgo_t& algorithm) {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(impl.handle, description.handle, w.handle, x.handle, out.handle,
                                   out.handle, &algorithm, &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
  };
  const auto plan_for = [&](int64_t m) -> const cublasLtMatmulAlgo_t& {
    const auto key = std::make_tuple(m, p.w.n, p.w.k, p.w.type, f32, alignment);
    auto plan = impl.plans.find(key);
    if (plan == impl.plans.end()) plan = impl.plans.emplace(key, choose(m)).first;
    return plan->second;
  };
  const int64_t bucket = bucket_of(p.m);
  const cublasLtMatmulAlgo_t* algorithm = &plan_for(bucket);
  if (bucket != p.m && !usable(*algorithm)) algorithm = &plan_for(p.m);
  const float one = 1.0F;
  const float zero = 0.0F;
  check(cublasLtMatmul(impl.handle, description.handle, &one, p.w.data, w.handle, p.x, x.handle, &zero, y,
                       out.handle, y, out.handle, algorithm, impl.workspace, kWorkspaceBytes,
                       static_cast<cudaStream_t>(launch.stream.native)),
        "multiplying");
}

}  // namespace hadal::cuda
