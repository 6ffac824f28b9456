// Decides which drafts count as accepted where a benchmark simulates speculation, for every device. The
// functions are pure.
#pragma once

#include <cstdint>

#include "base/philox.h"

namespace hadal {

// Tells whether the draft of the token at `position` counts as accepted, which it does with probability
// `chance` in [0, 1]. The bits come from Philox4x32-10 with the seed as key and the counter (position, 0, 1);
// because sampling's counters end in 0 (base/gumbel.h), its noise is independent of these bits.
constexpr bool simulates_acceptance(uint64_t seed, uint64_t position, double chance) {
  const uint32_t bits =
      philox4x32_10({static_cast<uint32_t>(position), static_cast<uint32_t>(position >> 32), 0, 1},
                    {static_cast<uint32_t>(seed), static_cast<uint32_t>(seed >> 32)})[0];
  return static_cast<double>(bits) < chance * 0x1p32;
}

}  // namespace hadal
