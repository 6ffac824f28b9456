// What the page tables of decode steps on the device hold, so that only what differs needs to travel. Host
// only.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hadal {

class TableMirror {
 public:
  // Tables of num_rows sequences, `stride` entries apart.
  TableMirror(int64_t num_rows, int64_t stride);

  // Brings the mirror to `tables` ([·, table_stride], padded with −1). False: more than `most` entries
  // differ, and the whole of it, padding included, is taken to be copied. True: they are places() and
  // values(), and what is padding stays as it was.
  bool update(std::span<const int32_t> tables, int64_t table_stride, size_t most);

  // Nothing is known of the device any more: the next tables count as new.
  void forget();

  const std::vector<int32_t>& places() const { return places_; }  // row · stride + column
  const std::vector<int32_t>& values() const { return values_; }

 private:
  const int64_t stride_;
  std::vector<int32_t> entries_;
  std::vector<int32_t> places_, values_;
};

}  // namespace hadal
