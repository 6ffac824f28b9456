// The name of a request inside the engine and everything below it.
#pragma once

#include <cstdint>

namespace hadal {

using RequestId = uint64_t;  // minted by the engine, from 1 on; never used twice

}  // namespace hadal
