// Says in words why a request is malformed, and what its headers are. The functions are pure.
#pragma once

#include <span>
#include <string>
#include <string_view>

#include <boost/system/error_code.hpp>

namespace hadal::server {

// Returns the value of a header, or another part of a head, as an error shows it: in quotes, cut after
// kShownChars characters (base/printable.h), and with \xNN for its bytes if it is not UTF-8.
std::string shown_header(std::string_view value);

// Returns "NAME is VALUE and VALUE" for the values of the header `name`, of which there is one or more. It
// shows the first two.
std::string told_header(std::string_view name, std::span<const std::string_view> values);

// Returns a text for a request that Beast refuses with `error`: what is wrong, and what is allowed instead.
// `head` is the text that Beast was reading, which contains the wrong headers.
std::string malformed_reason(const boost::system::error_code& error, std::string_view head);

}  // namespace hadal::server
