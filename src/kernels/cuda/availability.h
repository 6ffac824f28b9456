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

// Asks the driver and device 0, and has that device load a piece of this build's code; throws nothing. Takes
// a few hundred milliseconds where there is a device (a context is made), microseconds where there is none.
Availability availability();

}  // namespace hadal::cuda
