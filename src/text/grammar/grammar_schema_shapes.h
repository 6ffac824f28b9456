// Checks the form of a keyword's value. Only grammar_schema.cpp includes it. The function is pure.
#pragma once

#include <string>

#include <boost/json/fwd.hpp>

#include "text/grammar/grammar_schema_keywords.h"

namespace hadal {

// Returns what the value of a keyword must be, or nothing if it has the right shape.
std::string wanted_shape(const Keyword& keyword, const boost::json::value& value);

}  // namespace hadal
