// Returns the version of this build, as stated in CMakeLists.txt.
#pragma once

#include <string_view>

namespace hadal {

// Returns major.minor.patch, e.g. "0.1.0", without the state of any repository, so that equal sources give
// equal binaries.
std::string_view version();

}  // namespace hadal
