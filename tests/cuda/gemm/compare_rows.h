// Compares copies of rows on the device, for tests that launch a kernel too often to download each result.
#pragma once

#include <cstdint>

#include "tensor/cuda.h"

namespace hadal::testing {

// Lies on the device; it must be zero before the first comparison.
struct Differences {
  unsigned long long count = 0;
  long long copy = 0, word = 0;  // one of the places, where count > 0
};

// Compares copies [num_copies][words] with first [words] and adds the differences to *differences.
void add_differences(const uint16_t* copies, const uint16_t* first, int64_t words, int num_copies,
                     Differences* differences, StreamHandle stream);

}  // namespace hadal::testing
