// Compiles Boost.JSON once, so that whoever includes <boost/json.hpp> stays cheap to build.
#include <boost/json/src.hpp>
