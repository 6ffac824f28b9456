// This header is precompiled for the libraries that read and write JSON in many of their sources.
#pragma once

#include <boost/json.hpp>

#include "libraries.h"
