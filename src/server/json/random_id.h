// Makes ids for requests whose client gives none.
#pragma once

#include <string>

namespace hadal::server {

// Returns 32 hexadecimal digits, which are unique and cannot be guessed. Any thread may call it.
std::string random_id();

}  // namespace hadal::server
