#include "tests/source_dir.h"

#include <cstdlib>

namespace hadal {

std::string source_dir() {
  const char* const moved = std::getenv("HADAL_SOURCE_DIR");
  return moved != nullptr ? moved : HADAL_SOURCE_DIR;
}

}  // namespace hadal
