// Collects all faults of a command line, so that one error can list them. A Complaints object is plain data
// and belongs to one thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal::cli {

class Complaints {
 public:
  // `subject` is the faulty part, such as "--dp 8"; it may be empty. Subjects with the same reason are listed
  // together.
  void add(std::string subject, std::string reason);
  bool empty() const { return entries_.empty(); }
  // Returns a status with the code kInvalidArgument and one line: the complaint itself if there is only one,
  // else a numbered list.
  Status status() const;

 private:
  std::vector<std::pair<std::string, std::string>> entries_;  // subjects, joined by commas, and their reason
};

}  // namespace hadal::cli
