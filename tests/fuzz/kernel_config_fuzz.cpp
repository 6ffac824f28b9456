// Fuzzes files of kernel choices and their names: any text is either read or refused with a message, and what
// was read is written and read again with the same result.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "tune/kernel_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const bool experts : {false, true}) {
    const auto file = hadal::parse_kernel_config(text, "fuzz", experts);
    if (!file.ok()) {
      if (file.status().message.empty()) std::abort();
      continue;
    }
    const std::string written =
        hadal::kernel_config_json(file->entries, hadal::WeightType::kFp8Block, experts);
    const auto again = hadal::parse_kernel_config(written, "again", experts);
    if (!again.ok() || again->entries.size() != file->entries.size()) std::abort();
    const hadal::KernelConfigName name{.n = 512, .k = 7168, .type = hadal::WeightType::kFp8Block};
    for (size_t i = 0; i < file->entries.size(); ++i) {
      if (again->entries[i].choice != file->entries[i].choice) std::abort();
      supports(file->entries[i].choice, hadal::linear_shape_of(name, file->entries[i].batch, 132));
    }
  }
  const auto name = hadal::parse_file_name(text, "NVIDIA H200");
  if (name && file_name(*name) != text) std::abort();
  const auto choice = hadal::cuda::parse_choice(text);
  if (choice.ok() && hadal::cuda::parse_choice(to_string(*choice)).value() != *choice) std::abort();
  return 0;
}
