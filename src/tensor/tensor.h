// Tensor is a non-owning, typed, strided view of memory. It is plain data. Strides are counted in elements.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>

#include "base/check.h"
#include "tensor/device.h"
#include "tensor/dtype.h"

namespace hadal {

struct Tensor {
  static constexpr int kMaxRank = 4;

  void* data = nullptr;
  DType dtype = DType::kF32;
  Device device;
  int rank = 0;
  std::array<int64_t, kMaxRank> shape{};
  std::array<int64_t, kMaxRank> stride{};

  Tensor() = default;
  // Makes a dense row-major view of `data`.
  Tensor(void* data_ptr, DType type, std::initializer_list<int64_t> dims, Device where = {})
      : data(data_ptr), dtype(type), device(where), rank(static_cast<int>(dims.size())) {
    HADAL_CHECK_LE(dims.size(), static_cast<size_t>(kMaxRank));
    int i = 0;
    for (const int64_t dim : dims) shape[i++] = dim;
    int64_t step = 1;
    for (i = rank - 1; i >= 0; --i) {
      stride[i] = step;
      step *= shape[i];
    }
  }
  template <typename T>
  static Tensor of(T* data_ptr, std::initializer_list<int64_t> dims) {
    return Tensor(const_cast<std::remove_const_t<T>*>(data_ptr), dtype_of<std::remove_const_t<T>>(), dims);
  }

  int64_t num_elements() const {
    int64_t count = 1;
    for (int i = 0; i < rank; ++i) count *= shape[i];
    return count;
  }
  bool is_contiguous() const {
    int64_t step = 1;
    for (int i = rank - 1; i >= 0; --i) {
      if (shape[i] != 1 && stride[i] != step) return false;
      step *= shape[i];
    }
    return true;
  }

  template <typename T>
  T* ptr() const {
    HADAL_CHECK(dtype == dtype_of<std::remove_const_t<T>>(), "tensor is {}", to_string(dtype));
    return static_cast<T*>(data);
  }

  // Returns rows [begin, begin + count) of the first dimension.
  Tensor rows(int64_t begin, int64_t count) const {
    HADAL_CHECK(begin >= 0 && count >= 0 && begin + count <= shape[0], "rows {}+{} of {}", begin, count,
                shape[0]);
    Tensor view = *this;
    view.data = static_cast<char*>(data) + begin * stride[0] * dtype_bytes(dtype);
    view.shape[0] = count;
    return view;
  }
};

}  // namespace hadal
