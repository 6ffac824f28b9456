#include "cli/chat/history_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <system_error>

#include <nlohmann/json.hpp>

#include "base/mapped_file.h"

namespace hadal::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

std::string history_line(std::string_view entry) {
  return json(entry).dump(-1, ' ', false, json::error_handler_t::replace) + "\n";
}

// Appends `text` to a file, or replaces the file's content by it, as the flags in `how` say.
Result<void> write_private(const fs::path& path, const std::string& text, int how) {
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | how, S_IRUSR | S_IWUSR);
  if (file < 0) return data_loss("{}: cannot be written: {}", path.string(), std::strerror(errno));
  ::fchmod(file, S_IRUSR | S_IWUSR);  // a file that was there may have had another mode
  const ssize_t count = ::write(file, text.data(), text.size());
  const int error = errno;
  ::close(file);
  if (count == static_cast<ssize_t>(text.size())) return {};
  return data_loss("{}: cannot be written: {}", path.string(),
                   count < 0 ? std::strerror(error) : "no space left on the device");
}

Result<void> make_private_folders(const fs::path& folder) {
  std::error_code error;
  if (fs::is_directory(folder, error)) return {};
  if (folder.has_parent_path() && folder.parent_path() != folder)
    HADAL_RETURN_IF_ERROR(make_private_folders(folder.parent_path()));
  if (::mkdir(folder.c_str(), S_IRWXU) != 0 && errno != EEXIST)
    return data_loss("{}: cannot be made: {}", folder.string(), std::strerror(errno));
  return {};
}

}  // namespace

fs::path chat_history_path(std::string_view xdg_state_home, std::string_view home) {
  fs::path folder;
  if (xdg_state_home.starts_with('/')) {
    folder = xdg_state_home;
  } else if (!home.empty()) {
    folder = fs::path(home) / ".local" / "state";
  }
  return folder.empty() ? folder : folder / "hadal" / "chat_history";
}

std::vector<std::string> load_history(const fs::path& path) {
  std::vector<std::string> entries;
  const auto text = read_text_file(path);
  if (!text.ok()) return entries;
  for (size_t begin = 0; begin < text->size();) {
    const size_t end = std::min(text->find('\n', begin), text->size());
    const json entry = json::parse(std::string_view(*text).substr(begin, end - begin), nullptr, false);
    if (entry.is_string()) entries.push_back(entry.get<std::string>());
    begin = end + 1;
  }
  if (entries.size() <= kMaxHistoryEntries) return entries;
  const bool is_long = entries.size() >= 2 * kMaxHistoryEntries;
  entries.erase(entries.begin(), entries.end() - kMaxHistoryEntries);
  if (is_long) {
    std::string kept;
    for (const std::string& entry : entries) kept += history_line(entry);
    const fs::path shorter = path.string() + ".new";
    std::error_code ignored;  // the long file remains usable
    if (write_private(shorter, kept, O_TRUNC).ok()) fs::rename(shorter, path, ignored);
  }
  return entries;
}

Result<void> append_history(const fs::path& path, std::string_view entry) {
  HADAL_RETURN_IF_ERROR(make_private_folders(path.parent_path()));
  return write_private(path, history_line(entry), O_APPEND);
}

}  // namespace hadal::cli
