// A choice names a compiled kernel that computes a product, and its configuration. It is plain data that can
// be compared, printed, read, written to files and measured. gemm/choice.h and experts/choice.h say which
// choices support a shape and which of them is used. This header is for the host alone, includes no CUDA
// header and is part of every build. Its functions are pure; any thread may call them.
//
// docs/kernels/kernel-choices.md says how to add a tile shape or a kernel.
#pragma once

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

enum class ProductKernel : uint8_t {
  kReference,  // plain loops: any shape; never measured
  kThin,       // gemm/thin/kernel.cuh: the whole matrix in registers and shared memory of one wave
  kSkinny,     // gemm/skinny/kernel.cuh: weights streamed past few rows
  kTiled,      // gemm/tiled/kernel.cuh: tiles on the tensor cores, many rows
  kColumns,    // experts/columns/kernel.cuh: tiles for experts in 16 bits, whose columns are the rows of x
  kLibrary,    // cuBLASLt
  kRouter,     // gemm/router/router.cu: float32 products
};
inline constexpr ProductKernel kProductKernels[] = {
    ProductKernel::kReference, ProductKernel::kThin,    ProductKernel::kSkinny, ProductKernel::kTiled,
    ProductKernel::kColumns,   ProductKernel::kLibrary, ProductKernel::kRouter};
const char* to_string(ProductKernel kernel);
std::optional<ProductKernel> parse_product_kernel(std::string_view name);

// The kernel determines every parameter that has no field here.
struct Choice {
  ProductKernel kernel = ProductKernel::kReference;
  int block_m = 0;  // rows of x in a tile
  int block_n = 0;  // rows of W in a block
  int splits = 1;   // parts into which k is cut
  int stages = 0;   // slots of the ring in shared memory
  int cluster = 1;  // blocks that share their loads

  bool operator==(const Choice&) const = default;
};

// Returns, for example, "skinny 8x64 splits 4 stages 12", "tiled 256x128 stages 4 cluster 2", or "library".
// Fields at their defaults are left out.
std::string to_string(const Choice& choice);
// Returns the inverse of to_string. Errors name the word and what is allowed.
Result<Choice> parse_choice(std::string_view text);

// These return the number of warps of a block, and the number of elements of k in one step if an element of W
// has the given size. The files call them num_warps and BLOCK_SIZE_K. Both are 0 for the library.
int num_warps(const Choice& choice);
int block_k(const Choice& choice, int64_t element_bytes);
// Returns the number of row tiles that are computed before the next columns (GROUP_SIZE_M in the files).
int group_m(const Choice& choice);

// Choices that were measured in bf16 also serve float16, because the kernels are the same. A choice that is
// not compiled for float16 is skipped.
constexpr WeightType measured_type(WeightType type) {
  return type == WeightType::kF16 ? WeightType::kBF16 : type;
}

// Returns true if products with weights of this type run on the tensor cores, in linears and in experts. This
// holds for all types except float32, which routers and an indexer's weights_proj may have.
constexpr bool has_tensor_core_kernels(WeightType type) {
  return type != WeightType::kF32;
}
// Returns the width of a row as the kernels read it, in elements. Rows of codes are padded to whole blocks of
// 128.
constexpr int64_t padded_k(WeightType type, int64_t k) {
  return has_scales(type) ? (k + 127) / 128 * 128 : k;
}
// These return the bytes of such a row, and the number of its blocks of 128 bytes. The last block may be
// partial.
constexpr int64_t row_bytes(WeightType type, int64_t k) {
  return padded_k(type, k) * weight_element_bytes(type);
}
constexpr int blocks_of_k(WeightType type, int64_t k) {
  return static_cast<int>((k * weight_element_bytes(type) + 127) / 128);
}
// This is the largest k of INT8 products with channel scales, because an int32 sum must hold up to 2^14 · k.
inline constexpr int64_t kMaxInt8K = 131072;
constexpr bool sums_fit(WeightType type, int64_t k) {
  return type != WeightType::kInt8Channel || k <= kMaxInt8K;
}

// The largest batch that is measured by default has this many tokens; its choice also serves larger batches.
inline constexpr int64_t kLargestMeasuredBatch = 4096;

// Holds choices that were measured at some numbers of rows. Each choice serves the smaller numbers of rows
// down to the next measured number, just as a graph serves the smaller batches that are padded to its size.
// So if the measured numbers are the sizes of graphs, padding a batch changes neither its choice nor its
// bits. But a choice serves no number below an eighth of its own, and the choice measured at the smallest
// number serves none below half of that number. Where no choice of a larger number serves, the choice of the
// next smaller number serves up to twice its number, or all larger numbers if it was measured at the largest
// batch. For other numbers the heuristic decides (docs/kernels/kernel-choices.md).
class ChoicesByRows {
 public:
  // A later choice for the same number of rows replaces the earlier one. and_more means that it was measured
  // at kLargestMeasuredBatch or above.
  void set(int64_t rows, const Choice& choice, bool and_more) { choices_[rows] = {choice, and_more}; }
  // Considers the choices that serve `rows` and for which supports(choice) is true. Returns the choice
  // measured at the smallest number ≥ rows. If there is none, returns the choice measured at the largest
  // number < rows, or nullopt.
  template <typename Supports>
  std::optional<Choice> for_rows(int64_t rows, const Supports& supports) const {
    const auto above = choices_.lower_bound(rows);
    const int64_t reach = above == choices_.begin() ? 2 : 8;
    for (auto it = above; it != choices_.end() && it->first <= reach * rows; ++it) {
      if (supports(it->second.choice)) return it->second.choice;
    }
    for (auto it = std::make_reverse_iterator(above); it != choices_.rend(); ++it) {
      const bool serves = rows <= 2 * it->first || it->second.and_more;
      if (serves && supports(it->second.choice)) return it->second.choice;
    }
    return std::nullopt;
  }
  size_t size() const { return choices_.size(); }

 private:
  struct Entry {
    Choice choice;
    bool and_more = false;
  };
  std::map<int64_t, Entry> choices_;
};

}  // namespace hadal::cuda
