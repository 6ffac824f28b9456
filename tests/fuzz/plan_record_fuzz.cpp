// Fuzzes records of plans: any text is replayed or refused with a message, and breaks no invariant.
#include <cstdint>
#include <cstdlib>
#include <sstream>
#include <string>

#include "scheduler/plan_record.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::istringstream record(std::string(reinterpret_cast<const char*>(data), size));
  const auto replay = hadal::replay_plans(record);
  if (!replay.ok() && replay.status().message.empty()) std::abort();
  return 0;
}
