// Bounds the members of the objects of a client's JSON before it is parsed. Boost.JSON finds the keys of an
// object with a hash table whose hash a client can predict, so an object of n members may take n² steps.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "base/result.h"

namespace hadal {

inline constexpr size_t kMaxObjectMembers = 4096;
// The most that the squares of the members of all objects may add up to: 16 of the largest objects.
inline constexpr uint64_t kMaxMemberSquares = uint64_t{1} << 28;

// Checks that no object in the JSON text has more than kMaxObjectMembers members, where a repeated key counts
// each time, and that the squares of the members of all objects add up to at most kMaxMemberSquares. The
// error (kInvalidArgument) begins with `what`, which names the text. Nothing after the first byte at which a
// JSON text surely cannot continue, or which is nested deeper than `max_depth`, is checked: no parser with
// that limit reads on either, and its error says more. The function takes one pass and calls
// check_cancelled().
Result<void> check_json_members(std::string_view text, std::string_view what, size_t max_depth);

}  // namespace hadal
