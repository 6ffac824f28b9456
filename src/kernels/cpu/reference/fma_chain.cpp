#include <cmath>

#include "kernels/cpu/reference/weight_chain.h"

namespace hadal::cpu::reference {
namespace {

float plain_chain(float sum, const float* x, const float* y, int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum = std::fma(x[i], y[i], sum);
  return sum;
}

// Computes the same chain with the FMA instruction, because in the baseline of x86-64 each std::fma is a call
// of the C library, which takes ten times as long. Both round once, so their results have the same bits.
__attribute__((target("fma"))) float instruction_chain(float sum, const float* x, const float* y,
                                                       int64_t count) {
  for (int64_t i = 0; i < count; ++i) sum = __builtin_fmaf(x[i], y[i], sum);
  return sum;
}

}  // namespace

float fma_chain(float sum, const float* x, const float* y, int64_t count) {
  static const bool has_instruction = __builtin_cpu_supports("fma");
  return has_instruction ? instruction_chain(sum, x, y, count) : plain_chain(sum, x, y, count);
}

}  // namespace hadal::cpu::reference
