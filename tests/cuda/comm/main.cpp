#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // A rank's launch must not wait for a kernel which itself waits for that rank. The driver therefore loads
  // all code at once, and gives each stream a queue of its own.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
