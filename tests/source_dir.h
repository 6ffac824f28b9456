// Says where the repository's files lie. Only one source file knows the path, so that every other test and
// bench is compiled to the same bytes in every clone.
#pragma once

#include <string>

namespace hadal {

// Returns the value of the environment variable HADAL_SOURCE_DIR if it is set (the tests may run on another
// machine than the one that built them), otherwise the directory that was built. The path is absolute and has
// no slash at its end.
std::string source_dir();

}  // namespace hadal
