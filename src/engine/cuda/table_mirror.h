// Mirrors the page tables of decode steps on the device, so that only differences need to be copied. It uses
// no device itself.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hadal {

class TableMirror {
 public:
  // Mirrors tables of num_rows sequences, `stride` entries apart.
  TableMirror(int64_t num_rows, int64_t stride);

  // Updates the mirror to `tables` ([·, table_stride], padded with −1). It returns false if more than `most`
  // entries differ; the caller must then copy the whole mirror, including padding. If it returns true, the
  // differences are in places() and values(), and padding keeps its old contents.
  bool update(std::span<const int32_t> tables, int64_t table_stride, size_t most);

  // Marks the device's contents as unknown, so that all entries of the next tables count as changed.
  void forget();

  const std::vector<int32_t>& places() const { return places_; }  // row · stride + column
  const std::vector<int32_t>& values() const { return values_; }

 private:
  const int64_t stride_;
  std::vector<int32_t> entries_;
  std::vector<int32_t> places_, values_;
};

}  // namespace hadal
