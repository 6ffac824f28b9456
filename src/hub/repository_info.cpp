#include "hub/repository_info.h"

#include <utility>

#include <nlohmann/json.hpp>

#include "base/printable.h"
#include "hub/model_id.h"

namespace hadal::hub {
namespace {

using Json = nlohmann::json;

// Parses to the depth that matters (an object, siblings, a file, its lfs), so that hostile nesting is dropped
// while it is read.
Json parse_shallow(std::string_view text) {
  constexpr int kMaxDepth = 4;
  const auto shallow = [](int depth, Json::parse_event_t event, Json&) {
    const bool opens =
        event == Json::parse_event_t::object_start || event == Json::parse_event_t::array_start;
    return !opens || depth < kMaxDepth;
  };
  return Json::parse(text, shallow, /*allow_exceptions=*/false);
}

std::string text_field(const Json& object, const char* name) {
  const auto at = object.find(name);
  return at != object.end() && at->is_string() ? at->get<std::string>() : std::string();
}

// Returns a size in bytes, or -1.
int64_t size_field(const Json& object) {
  const auto at = object.find("size");
  if (at == object.end() || !at->is_number_integer()) return -1;
  if (at->is_number_unsigned() && at->get<uint64_t>() > uint64_t{INT64_MAX}) return -1;
  const int64_t size = at->get<int64_t>();
  return size < 0 ? -1 : size;
}

RemoteFile read_file(const Json& sibling) {
  RemoteFile file{.name = text_field(sibling, "rfilename"), .size = size_field(sibling)};
  const auto lfs = sibling.find("lfs");
  if (lfs != sibling.end() && lfs->is_object()) {
    file.checksum = text_field(*lfs, "sha256");
    if (const int64_t size = size_field(*lfs); size >= 0) file.size = size;
    if (!is_hex(file.checksum, 64)) file.checksum.clear();
  } else {
    file.checksum = text_field(sibling, "blobId");
    if (!is_hex(file.checksum, 40)) file.checksum.clear();
  }
  return file;
}

}  // namespace

Result<RepositoryInfo> parse_repository_info(std::string_view json, std::string_view source) {
  const Json answer = parse_shallow(json);
  if (answer.is_discarded() || !answer.is_object())
    return data_loss("{}: the answer is not a JSON object", source);
  RepositoryInfo info;
  info.commit = text_field(answer, "sha");
  if (!is_commit(info.commit)) {
    return data_loss("{}: sha is {}; must be a commit of 40 hexadecimal digits", source,
                     shown_text(info.commit));
  }
  const auto siblings = answer.find("siblings");
  if (siblings == answer.end() || !siblings->is_array()) {
    return data_loss("{}: siblings is missing; it must list the repository's files", source);
  }
  for (const Json& sibling : *siblings) {
    if (!sibling.is_object()) return data_loss("{}: an entry of siblings is not an object", source);
    info.files.push_back(read_file(sibling));
  }
  return info;
}

std::string parse_error_answer(std::string_view json) {
  const Json answer = parse_shallow(json);
  return answer.is_object() ? text_field(answer, "error") : std::string();
}

}  // namespace hadal::hub
