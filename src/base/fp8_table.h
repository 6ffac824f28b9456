// Holds the values of all 256 e4m3 codes. Any thread may read them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/float_types.h"

namespace hadal {

// Computing a value costs more than reading it, so the table is made once.
inline const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> table{};
    for (size_t code = 0; code < table.size(); ++code)
      table[code] = to_float(fp8_e4m3{static_cast<uint8_t>(code)});
    return table;
  }();
  return values;
}

}  // namespace hadal
