#include "server/random_id.h"

#include <fmt/format.h>

#include <cstdint>
#include <random>

namespace hadal::server {

std::string random_id() {
  thread_local std::mt19937_64 engine = [] {
    std::random_device device;
    std::seed_seq seed{device(), device(), device(), device(), device(), device()};
    return std::mt19937_64(seed);
  }();
  const uint64_t high = engine();
  const uint64_t low = engine();
  return fmt::format("{:016x}{:016x}", high, low);
}

}  // namespace hadal::server
