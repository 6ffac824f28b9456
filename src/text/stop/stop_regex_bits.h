// Has the bits of the sets that stop_regex_detector.h describes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace hadal {

inline bool has_stop_bit(std::span<const uint64_t> words, size_t i) {
  return (words[i / 64] >> (i % 64) & 1) != 0;
}
inline void set_stop_bit(std::span<uint64_t> words, size_t i) {
  words[i / 64] |= uint64_t{1} << (i % 64);
}
inline void clear_stop_bit(std::span<uint64_t> words, size_t i) {
  words[i / 64] &= ~(uint64_t{1} << (i % 64));
}

}  // namespace hadal
