// This header is precompiled for the tests.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "libraries.h"
