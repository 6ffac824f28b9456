// tensor/random_operands.h for the benches, which `hadal tune` shares.
#pragma once

#include "tensor/random_operands.h"

namespace hadal::bench {

using hadal::random_bf16;
using hadal::random_e4m3;
using hadal::random_int8;
using hadal::random_scales;
using hadal::repeated;

}  // namespace hadal::bench
