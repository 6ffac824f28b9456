#include "server/json/random_id.h"

#include <fmt/format.h>
#include <openssl/rand.h>

#include <cstdint>

#include "base/check.h"

namespace hadal::server {

std::string random_id() {
  uint64_t words[2];
  // The ids are random, because a client that knows many ids must not be able to guess those of other
  // clients.
  HADAL_CHECK(::RAND_bytes(reinterpret_cast<unsigned char*>(words), sizeof(words)) == 1,
              "there are no random bytes");
  return fmt::format("{:016x}{:016x}", words[0], words[1]);
}

}  // namespace hadal::server
