// Where the repository's files lie. One source file alone knows the path, so that every other test and bench
// is compiled to the same bytes in every clone.
#pragma once

#include <string>

namespace hadal {

// Returns the value of the environment variable HADAL_SOURCE_DIR if it is set (the tests may run on another
// machine than the one that built them), else the directory that was built. Absolute, without a slash at its
// end.
std::string source_dir();

}  // namespace hadal
