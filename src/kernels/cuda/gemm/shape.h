// Describes the shape by which a kernel of cuda::linear is chosen: type, sizes and alignment of the operands,
// never their values. This header is for the host alone and includes no CUDA header.
#pragma once

#include <cstdint>

#include "kernels/cuda/choice.h"
#include "kernels/params/linear.h"

namespace hadal::cuda {

using LinearChoice = Choice;

struct LinearShape {
  WeightType type = WeightType::kBF16;
  int64_t m = 0;  // rows of x
  int64_t n = 0;  // outputs
  int64_t k = 0;
  int num_sms = 132;  // multiprocessors of the device
  // True if weights and activations begin at multiples of 16 bytes, and their rows are multiples of 16 bytes
  // long and hold all of k (8-bit types: padded to a multiple of 128).
  bool aligned = true;
  bool f32_y = false;  // y is float32
  // True if y is aligned in this way, and for 8-bit types also the activations' scales; scales and biases of
  // channels begin at multiples of 8 bytes.
  bool aligned_y = true;
};

}  // namespace hadal::cuda
