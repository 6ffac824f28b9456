// Compiles Boost.JSON once, so that files that include <boost/json.hpp> stay cheap to build.
#include <boost/json/src.hpp>
