#include "text/tokenizer/unicode_classes.h"

#include <algorithm>

namespace hadal {

namespace {

struct Range {
  uint32_t first;
  uint32_t last;
  uint8_t bits;
};

constexpr Range kRanges[] = {
#include "text/unicode_ranges.inc"
};

}  // namespace

CodePointTable::CodePointTable() : blocks_(256, 0) {
  index_.fill(0);
}

void CodePointTable::assign(uint32_t first, uint32_t last, uint8_t value) {
  for (uint32_t block = first >> 8; block <= last >> 8; ++block) {
    if (index_[block] == 0) {
      index_[block] = static_cast<uint16_t>(blocks_.size() >> 8);
      blocks_.resize(blocks_.size() + 256, 0);
    }
    uint8_t* values = blocks_.data() + (static_cast<size_t>(index_[block]) << 8);
    const uint32_t begin = std::max(first, block << 8) & 0xFF;
    const uint32_t end = std::min(last, block << 8 | 0xFF) & 0xFF;
    for (uint32_t i = begin; i <= end; ++i) values[i] = value;
  }
}

void CodePointTable::map(uint8_t (*function)(uint8_t)) {
  for (size_t i = 256; i < blocks_.size(); ++i) blocks_[i] = function(blocks_[i]);
}

CodePointTable make_unicode_classes() {
  CodePointTable table;
  for (const Range& range : kRanges) table.assign(range.first, range.last, range.bits);
  return table;
}

}  // namespace hadal
