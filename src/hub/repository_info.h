// Reads the hub's answer on a model's files. The answer is not trusted: a part that is not as expected is an
// error or is left out. The functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::hub {

// RemoteFile describes a file of a repository and the size and checksum that its content must have.
struct RemoteFile {
  std::string name;      // a path in the repository, as the hub states it
  int64_t size = -1;     // in bytes; -1: not stated
  std::string checksum;  // hexadecimal, and the name of its blob in the cache: the content's SHA-256 (64
                         // digits) of a file in large file storage, git's SHA-1 of a blob (40) of another
                         // one; empty: not stated, or no such number

  bool is_checkable() const { return size >= 0 && !checksum.empty(); }
};

struct RepositoryInfo {
  std::string commit;  // 40 hexadecimal digits
  std::vector<RemoteFile> files;
};

// Reads the answer of /api/models/ID/revision/REV?blobs=true: `sha` and `siblings`. `source` names the answer
// in errors. All errors are kDataLoss, also that for a list of more than 200,000 files. The time is linear in
// the length of the text.
Result<RepositoryInfo> parse_repository_info(std::string_view json, std::string_view source);

// Returns the field `error` of an answer that refuses something; empty if there is none.
std::string parse_error_answer(std::string_view json);

}  // namespace hadal::hub
