#include <gtest/gtest.h>

#include <cstdlib>

int main(int argc, char** argv) {
  // A kernel that waits for another rank must not be what that rank's launch waits for: so the driver loads
  // all code at once, and gives each stream a queue of its own.
  setenv("CUDA_MODULE_LOADING", "EAGER", 1);
  setenv("CUDA_DEVICE_MAX_CONNECTIONS", "32", 1);
  ::testing::InitGoogleTest(&argc, argv);
  return RUN_ALL_TESTS();
}
