// Launches kernels for tests.
#pragma once

#include "kernels/cuda/launch.h"
#include "tests/cuda/device_array.h"

namespace hadal::testing {

// Launches on test_stream(). Blocks of some kernels wait for each other, so their number must be that of the
// device's multiprocessors.
inline cuda::Launch test_launch(bool reference = false) {
  static const int num_sms = cuda_device_info(0).num_sms;
  return {.stream = test_stream().handle(), .num_sms = num_sms, .pdl = true, .reference = reference};
}

}  // namespace hadal::testing
