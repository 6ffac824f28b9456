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

// Returns m rounded up above 64, in steps of a sixteenth to an eighth of m; up to 64 it returns m itself.
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
  // The key holds m's bucket, n, k, type of the weights, float32 output and alignment of the operands.
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

namespace {

// Describes one product to the library, and runs it.
class Product {
 public:
  Product(const DenseLinearParams& params, GemmLibrary::Impl& impl)
      : p_(params),
        impl_(impl),
        f32_(params.y_f32 != nullptr),
        y_(f32_ ? static_cast<void*>(params.y_f32) : params.y),
        type_(params.w.type == WeightType::kF16 ? CUDA_R_16F : CUDA_R_16BF) {
    check(cublasLtMatmulDescCreate(&description_.handle, CUBLAS_COMPUTE_32F, CUDA_R_32F),
          "describing a product");
    const cublasOperation_t transposed = CUBLAS_OP_T;
    check(cublasLtMatmulDescSetAttribute(description_.handle, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                         sizeof transposed),
          "describing a product");
    describe(p_.m, layouts_);
  }

  void run(cudaStream_t stream) {
    const int64_t bucket = bucket_of(p_.m);
    const cublasLtMatmulAlgo_t* algorithm = &plan_for(bucket);
    if (bucket != p_.m && !usable(*algorithm)) algorithm = &plan_for(p_.m);
    const float one = 1.0F;
    const float zero = 0.0F;
    check(cublasLtMatmul(impl_.handle, description_.handle, &one, p_.w.data, layouts_.w.handle, p_.x,
                         layouts_.x.handle, &zero, y_, layouts_.y.handle, y_, layouts_.y.handle, algorithm,
                         impl_.workspace, kWorkspaceBytes, stream),
          "multiplying");
  }

 private:
  struct Layouts {
    Layout w, x, y;
  };

  // Describes the operands of a product with m rows of x.
  void describe(int64_t m, Layouts& out) const {
    const auto n = static_cast<uint64_t>(p_.w.n);
    const auto k = static_cast<uint64_t>(p_.w.k);
    const auto rows = static_cast<uint64_t>(m);
    check(cublasLtMatrixLayoutCreate(&out.w.handle, type_, k, n, p_.w.row_stride), "describing W");
    check(cublasLtMatrixLayoutCreate(&out.x.handle, type_, k, rows, p_.x_stride), "describing x");
    check(cublasLtMatrixLayoutCreate(&out.y.handle, f32_ ? CUDA_R_32F : type_, n, rows, p_.y_stride),
          "describing y");
  }

  // These combine an address with the bytes between rows, so that the lowest set bit is their common
  // alignment.
  uint64_t w_bits() const {
    return reinterpret_cast<uintptr_t>(p_.w.data) | static_cast<uint64_t>(p_.w.row_stride) * 2;
  }
  uint64_t x_bits() const {
    return reinterpret_cast<uintptr_t>(p_.x) | static_cast<uint64_t>(p_.x_stride) * 2;
  }
  uint64_t y_bits(uint64_t element_bytes) const {
    return reinterpret_cast<uintptr_t>(y_) | static_cast<uint64_t>(p_.y_stride) * element_bytes;
  }

  // Returns the algorithm that the library's heuristic chooses for m rows of x.
  cublasLtMatmulAlgo_t choose(int64_t m) const {
    Layouts layouts;
    describe(m, layouts);
    Preference preference;
    check(cublasLtMatmulPreferenceCreate(&preference.handle), "stating preferences");
    const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
      check(cublasLtMatmulPreferenceSetAttribute(preference.handle, attribute, &value, sizeof value),
            "stating preferences");
    };
    const auto prefer_alignment = [&](cublasLtMatmulPreferenceAttributes_t attribute, uint64_t bits) {
      prefer(attribute, static_cast<uint32_t>(alignment_of(bits)));
    };
    prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, kWorkspaceBytes);
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
           static_cast<uint32_t>(CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE));  // no reduction is always allowed
    prefer_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, w_bits());
    prefer_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, x_bits());
    prefer_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, y_bits(f32_ ? 4 : 2));
    prefer_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, y_bits(f32_ ? 4 : 2));
    cublasLtMatmulHeuristicResult_t result{};
    int found = 0;
    check(cublasLtMatmulAlgoGetHeuristic(impl_.handle, description_.handle, layouts.w.handle,
                                         layouts.x.handle, layouts.y.handle, layouts.y.handle,
                                         preference.handle, 1, &result, &found),
          "choosing an algorithm");
    HADAL_CHECK(found == 1, "cuBLASLt has no algorithm for m {}, n {}, k {}", m, p_.w.n, p_.w.k);
    return result.algo;
  }

  // Returns the algorithm for m rows, which is chosen at the first call and then kept.
  const cublasLtMatmulAlgo_t& plan_for(int64_t m) {
    const int alignment = alignment_of(w_bits() | x_bits() | y_bits(2));
    const auto key = std::make_tuple(m, p_.w.n, p_.w.k, p_.w.type, f32_, alignment);
    auto plan = impl_.plans.find(key);
    if (plan == impl_.plans.end()) plan = impl_.plans.emplace(key, choose(m)).first;
    return plan->second;
  }

  // Returns true if the algorithm supports this product.
  bool usable(const cublasLtMatmulAlgo_t& algorithm) const {
    cublasLtMatmulHeuristicResult_t result{};
    return cublasLtMatmulAlgoCheck(impl_.handle, description_.handle, layouts_.w.handle, layouts_.x.handle,
                                   layouts_.y.handle, layouts_.y.handle, &algorithm,
                                   &result) == CUBLAS_STATUS_SUCCESS &&
           result.workspaceSize <= kWorkspaceBytes;
  }

  const DenseLinearParams& p_;
  GemmLibrary::Impl& impl_;
  const bool f32_;  // y is float32
  void* const y_;
  const cudaDataType_t type_;
  Description description_;
  Layouts layouts_;
};

}  // namespace

void cublaslt_linear(const DenseLinearParams& p, GemmLibrary& library, const Launch& launch) {
  HADAL_CHECK(library::supports(linear_shape(p)) && p.x != nullptr,
              "cuBLASLt is used only for 16-bit operands");
  HADAL_CHECK((p.y != nullptr) != (p.y_f32 != nullptr), "one of y and y_f32 must be set");
  if (p.m == 0) return;
  Product(p, library.impl()).run(static_cast<cudaStream_t>(launch.stream.native));
}

}  // namespace hadal::cuda
