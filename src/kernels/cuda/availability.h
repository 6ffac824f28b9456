// Whether this build and this machine can run the CUDA backend. Free of CUDA headers.
#pragma once

#include <string>

namespace hadal::cuda {

struct Availability {
  bool usable = false;
  std::string reason;  // one line for the user when not usable
};

Availability availability();

}  // namespace hadal::cuda
