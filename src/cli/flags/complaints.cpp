#include "cli/flags/complaints.h"

#include <fmt/format.h>

#include <algorithm>

namespace hadal::cli {

void Complaints::add(std::string subject, std::string reason) {
  const auto same = std::find_if(entries_.begin(), entries_.end(), [&](const auto& entry) {
    return !subject.empty() && !entry.first.empty() && entry.second == reason;
  });
  if (same != entries_.end()) {
    same->first += ", " + subject;
  } else {
    entries_.emplace_back(std::move(subject), std::move(reason));
  }
}

Status Complaints::status() const {
  std::string text;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const auto& [subject, reason] = entries_[i];
    if (entries_.size() > 1) text += fmt::format("{}({}) ", i == 0 ? "" : "; ", i + 1);
    text += subject.empty() ? reason : fmt::format("{}: {}", subject, reason);
  }
  return invalid_argument("{}", text);
}

}  // namespace hadal::cli
