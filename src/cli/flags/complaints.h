// Gathers everything that is wrong with a command line, so that one error can say all of it. Plain data; a
// Complaints object belongs to one thread.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "base/result.h"

namespace hadal::cli {

class Complaints {
 public:
  // `subject` is what is wrong, such as "--dp 8"; it may be empty. Subjects with equal reasons share them.
  void add(std::string subject, std::string reason);
  bool empty() const { return entries_.empty(); }
  // Returns one line of the code kInvalidArgument: the complaint itself if there is one, else a numbered
  // list.
  Status status() const;

 private:
  std::vector<std::pair<std::string, std::string>> entries_;  // subjects, joined by commas, and their reason
};

}  // namespace hadal::cli
