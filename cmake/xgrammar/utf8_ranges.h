// Says which byte sequences encode a character in UTF-8 (RFC 3629, section 4). The library's ranges also hold
// surrogates (ED A0 80 to ED BF BF) and overlong forms (C0 80, E0 80 80, F0 80 80 80), with which an answer
// that a grammar allows might not be valid UTF-8.
#pragma once

#include <algorithm>
#include <cstdint>

namespace hadal_xgrammar {

// Calls add(low, high) for each part of the range from `first` to `last` whose sequences are valid. A number
// is the bytes of one character, with the first byte as the most significant: U+20AC is 0xE282AC.
template <typename Add>
void for_each_valid_utf8_range(uint32_t first, uint32_t last, Add add) {
  constexpr struct {
    uint32_t low, high;
  } kValid[] = {
      {0x00, 0x7F}, {0xC280, 0xDFBF}, {0xE0A080, 0xED9FBF}, {0xEE8080, 0xEFBFBF}, {0xF0908080, 0xF48FBFBF}};
  for (const auto& valid : kValid) {
    const uint32_t low = std::max(first, valid.low);
    const uint32_t high = std::min(last, valid.high);
    if (low <= high) add(low, high);
  }
}

}  // namespace hadal_xgrammar
