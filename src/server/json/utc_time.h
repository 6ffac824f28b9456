// Writes times for JSON. The function is pure.
#pragma once

#include <chrono>
#include <string>

namespace hadal::server {

// Returns the time by RFC 3339, in UTC with milliseconds: "2026-01-31T23:59:59.123Z".
std::string utc_time(std::chrono::system_clock::time_point when);

}  // namespace hadal::server
