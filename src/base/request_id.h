// RequestId names a request inside the engine and everything below it.
#pragma once

#include <cstdint>

namespace hadal {

using RequestId = uint64_t;  // assigned by the engine, counting from 1; never reused

}  // namespace hadal
