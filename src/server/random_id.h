// Ids for requests whose client brings none.
#pragma once

#include <string>

namespace hadal::server {

// 32 hexadecimal digits, unique for all practical purposes. Any thread.
std::string random_id();

}  // namespace hadal::server
