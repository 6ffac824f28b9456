// Tells whether this build and this machine can run the CUDA backend. This header includes no CUDA header.
#pragma once

#include <string>

namespace hadal::cuda {

struct Availability {
  bool usable = false;
  bool in_this_build = true;  // false: a build without CUDA
  std::string reason;         // one line for the user when not usable, with what would help
  int num_devices = 0;        // as the driver counts them; 0 when there is no usable driver
};

// Queries the driver and device 0, and loads a kernel of this build on that device; throws nothing. This
// takes a few hundred milliseconds if there is a device, because a context is created, and microseconds
// otherwise.
Availability availability();

}  // namespace hadal::cuda
