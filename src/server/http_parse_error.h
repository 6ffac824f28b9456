// Says in words why bytes are not an HTTP request.
#pragma once

#include <string_view>

#include <boost/system/error_code.hpp>

namespace hadal::server {

// Returns what is allowed where the parser (Boost.Beast) has found this error. The text has no values of the
// client's, because these need not be text.
std::string_view malformed_reason(const boost::system::error_code& error);

}  // namespace hadal::server
