// Makes ids for requests whose client gives none.
#pragma once

#include <string>

namespace hadal::server {

// Returns 32 hexadecimal digits, unique for all practical purposes. Any thread may call it.
std::string random_id();

}  // namespace hadal::server
