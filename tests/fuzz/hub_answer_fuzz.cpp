// Fuzzes what the Hugging Face hub answers: the list of a repository's files, the index of its weights, and
// the text of an error. The input up to the first zero byte is the list, the rest the index. Whatever a list
// says, every file that is chosen has a name without a path, and a checksum is a number of hexadecimal digits
// or absent, because both become names in the cache.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "hub/model_id.h"
#include "hub/needed_files.h"
#include "hub/repository_info.h"
#include "model/weight_index.h"
#include "unit_limit.h"

namespace {

using namespace hadal;
using namespace hadal::hub;

void check_chosen(const Result<std::vector<RemoteFile>>& files) {
  if (!files.ok()) {
    HADAL_CHECK(!files.status().message.empty() && files.status().message.find('\n') == std::string::npos,
                "{}", files.status().message);
    return;
  }
  for (const RemoteFile& file : *files) {
    HADAL_CHECK(is_plain_file_name(file.name), "{}", file.name);
    HADAL_CHECK(file.checksum.empty() || is_hex(file.checksum, 40) || is_hex(file.checksum, 64), "{}",
                file.checksum);
    HADAL_CHECK(!file.is_checkable() || file.size >= 0);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const fuzz::UnitLimit limit(2.0);
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t zero = input.find('\0');
  const std::string_view list = input.substr(0, zero);
  const std::string_view index = zero == input.npos ? std::string_view() : input.substr(zero + 1);
  parse_error_answer(list);
  if (const auto id = parse_model_id(list)) {
    HADAL_CHECK(id->repository.find("..") == std::string::npos &&
                id->revision.find("..") == std::string::npos);
  }
  const auto info = parse_repository_info(list, "source");
  if (!info.ok()) {
    HADAL_CHECK(info.status().message.starts_with("source: ") &&
                    info.status().message.find('\n') == std::string::npos,
                "{}", info.status().message);
    return 0;
  }
  HADAL_CHECK(is_commit(info->commit), "{}", info->commit);
  for (const FetchScope scope : {FetchScope::kTokenizer, FetchScope::kConfig, FetchScope::kWeights})
    check_chosen(choose_small_files(*info, scope));
  check_chosen(choose_weight_files(*info, index));
  return 0;
}
