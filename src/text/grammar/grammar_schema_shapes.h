// Checks the form of a keyword's value. Only grammar_schema.cpp includes it. The function is pure.
#pragma once

#include <string>

#include <boost/json/fwd.hpp>

#include "text/grammar/grammar_schema_keywords.h"

namespace hadal {

// Returns a description of the required shape if the keyword's value has another, and an empty text if the
// value is right.
std::string wanted_shape(const Keyword& keyword, const boost::json::value& value);

}  // namespace hadal
