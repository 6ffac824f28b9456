#include "engine/cuda/table_mirror.h"

#include <algorithm>

#include "base/check.h"

namespace hadal {

TableMirror::TableMirror(int64_t num_rows, int64_t stride)
    : stride_(stride), entries_(static_cast<size_t>(num_rows * stride), -1) {}

bool TableMirror::update(std::span<const int32_t> tables, int64_t table_stride, size_t most) {
  places_.clear();
  values_.clear();
  if (tables.empty()) return true;
  const int64_t num_rows = static_cast<int64_t>(tables.size()) / table_stride;
  HADAL_CHECK(table_stride <= stride_ && num_rows * stride_ <= static_cast<int64_t>(entries_.size()),
              "page tables of {} sequences, {} pages each, do not fit", num_rows, table_stride);
  for (int64_t row = 0; row < num_rows; ++row) {
    const int32_t* const table = tables.data() + row * table_stride;
    int32_t* const there = entries_.data() + row * stride_;
    for (int64_t i = 0; i < table_stride && table[i] >= 0; ++i) {
      if (there[i] == table[i]) continue;
      if (places_.size() == most) {
        for (int64_t r = 0; r < num_rows; ++r) {
          std::copy_n(tables.data() + r * table_stride, table_stride, entries_.data() + r * stride_);
        }
        return false;
      }
      there[i] = table[i];
      places_.push_back(static_cast<int32_t>(row * stride_ + i));
      values_.push_back(table[i]);
    }
  }
  return true;
}

void TableMirror::forget() {
  std::fill(entries_.begin(), entries_.end(), -1);
}

}  // namespace hadal
