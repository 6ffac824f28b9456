#include "hub/model_id.h"

#include <algorithm>
#include <cctype>

namespace hadal::hub {
namespace {

// Tells whether a text is safe as the name of a folder: org, name, or a part of a revision.
bool is_name(std::string_view part, size_t max_chars) {
  return !part.empty() && part.size() <= max_chars && part.front() != '.' && part.front() != '-' &&
         part.find("..") == std::string_view::npos &&
         std::all_of(part.begin(), part.end(), [](unsigned char c) {
           return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
         });
}

// A revision may have several parts, such as refs/pr/1.
bool is_revision(std::string_view text) {
  constexpr size_t kMaxChars = 200;
  if (text.size() > kMaxChars) return false;
  while (true) {
    const size_t slash = text.find('/');
    if (!is_name(text.substr(0, slash), kMaxChars)) return false;
    if (slash == std::string_view::npos) return true;
    text.remove_prefix(slash + 1);
  }
}

}  // namespace

std::optional<ModelId> parse_model_id(std::string_view text) {
  constexpr size_t kMaxPartChars = 96;
  const size_t at = text.find('@');
  const std::string_view repository = text.substr(0, at);
  const size_t slash = repository.find('/');
  if (slash == std::string_view::npos || !is_name(repository.substr(0, slash), kMaxPartChars) ||
      !is_name(repository.substr(slash + 1), kMaxPartChars)) {
    return std::nullopt;
  }
  ModelId id{.repository = std::string(repository)};
  if (at == std::string_view::npos) return id;
  if (!is_revision(text.substr(at + 1))) return std::nullopt;
  id.revision = text.substr(at + 1);
  return id;
}

bool is_hex(std::string_view text, size_t num_digits) {
  return text.size() == num_digits && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

bool is_commit(std::string_view text) {
  return is_hex(text, 40);
}

}  // namespace hadal::hub
