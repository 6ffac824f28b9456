#include "hub/repository_info.h"

#include <fmt/format.h>

#include <cstddef>
#include <optional>
#include <utility>

#include "base/printable.h"
#include "hub/model_id.h"
#include "model/json_events.h"

namespace hadal::hub {
namespace {

// The hub advises at most 100,000 files in a repository.
constexpr size_t kMaxFiles = 200'000;

struct Large {  // the field lfs of a listed file
  std::string sha256;
  int64_t size = -1;
};

// ListedFile is an entry of `siblings` as the answer has it.
struct ListedFile {
  std::string name;
  int64_t size = -1;
  std::string blob_id;
  std::optional<Large> lfs;
};

// Returns a size in bytes, or -1.
int64_t size_of(const JsonEvent& value) {
  return value.kind == JsonKind::kInteger && value.integer >= 0 ? value.integer : -1;
}

// ListReader collects the needed fields of the answer. If a name occurs twice, its last field counts.
class ListReader {
 public:
  // Returns false if the rest of the answer no longer matters.
  bool on_value(const JsonEvent& value) {
    switch (value.depth) {
      case 0:
        is_object_ = value.kind == JsonKind::kObject;
        return is_object_;
      case 1:
        in_files_ = false;
        if (value.key == "sha") commit_ = value.text;
        if (value.key == "siblings") {
          in_files_ = has_files_ = value.kind == JsonKind::kArray;
          files_.clear();
        }
        return true;
      case 2:
        return !in_files_ || begin_file(value);
      case 3:
        if (in_files_) on_field(files_.back(), value);
        return true;
      case 4:
        if (in_files_ && in_lfs_) on_lfs_field(*files_.back().lfs, value);
        return true;
      default:
        return true;
    }
  }

  // Returns what is wrong with the answer, or an empty text if nothing is. `end` says how reading ended.
  std::string fault(JsonEnd end) const {
    if (end == JsonEnd::kNoJson || !is_object_) return "the answer is not a JSON object";
    if (!fault_.empty()) return fault_;
    if (!is_commit(commit_))
      return fmt::format("sha is {}; must be a commit of 40 hexadecimal digits", shown_text(commit_));
    return has_files_ ? "" : "siblings is missing; it must list the repository's files";
  }
  const std::string& commit() const { return commit_; }
  std::vector<ListedFile>& files() { return files_; }

 private:
  bool begin_file(const JsonEvent& value) {
    if (value.kind != JsonKind::kObject) {
      fault_ = "an entry of siblings is not an object";
    } else if (files_.size() == kMaxFiles) {
      fault_ = fmt::format("siblings lists too many files; at most {} are accepted", kMaxFiles);
    } else {
      files_.emplace_back();
    }
    return fault_.empty();
  }
  void on_field(ListedFile& file, const JsonEvent& value) {
    in_lfs_ = value.key == "lfs" && value.kind == JsonKind::kObject;
    if (value.key == "rfilename") file.name = value.text;
    if (value.key == "size") file.size = size_of(value);
    if (value.key == "blobId") file.blob_id = value.text;
    if (value.key == "lfs") file.lfs.reset();
    if (in_lfs_) file.lfs.emplace();
  }
  static void on_lfs_field(Large& lfs, const JsonEvent& value) {
    if (value.key == "sha256") lfs.sha256 = value.text;
    if (value.key == "size") lfs.size = size_of(value);
  }

  bool is_object_ = false;
  bool has_files_ = false;
  bool in_files_ = false;  // the values of depth 2 to 4 are those of siblings
  bool in_lfs_ = false;    // and those of depth 4 are those of a file's lfs
  std::string commit_;
  std::vector<ListedFile> files_;
  std::string fault_;
};

RemoteFile checked(ListedFile listed) {
  RemoteFile file{.name = std::move(listed.name), .size = listed.size};
  if (listed.lfs) {
    if (listed.lfs->size >= 0) file.size = listed.lfs->size;
    if (is_hex(listed.lfs->sha256, 64)) file.checksum = std::move(listed.lfs->sha256);
  } else if (is_hex(listed.blob_id, 40)) {
    file.checksum = std::move(listed.blob_id);
  }
  return file;
}

}  // namespace

Result<RepositoryInfo> parse_repository_info(std::string_view json, std::string_view source) {
  ListReader reader;
  const JsonEnd end = read_json_events(json, [&](const JsonEvent& value) { return reader.on_value(value); });
  if (const std::string fault = reader.fault(end); !fault.empty()) return data_loss("{}: {}", source, fault);
  RepositoryInfo info{.commit = reader.commit()};
  info.files.reserve(reader.files().size());
  for (ListedFile& file : reader.files()) info.files.push_back(checked(std::move(file)));
  return info;
}

std::string parse_error_answer(std::string_view json) {
  std::string error;
  const JsonEnd end = read_json_events(json, [&](const JsonEvent& value) {
    if (value.depth == 1 && value.key == "error") error = value.text;
    return value.depth > 0 || value.kind == JsonKind::kObject;
  });
  return end == JsonEnd::kComplete ? error : std::string();
}

}  // namespace hadal::hub
