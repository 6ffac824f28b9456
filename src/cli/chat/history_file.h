// Keeps what a user has typed from one run of `hadal chat` to the next, in a file of JSON strings, one per
// line, which nobody else may read (mode 0600). Several processes may append at once.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal::cli {

inline constexpr size_t kMaxHistoryEntries = 1000;

// Returns where the history belongs by the XDG base directory specification: hadal/chat_history in
// $XDG_STATE_HOME if that is an absolute path, else in ~/.local/state; an empty path if neither is known.
std::filesystem::path chat_history_path(std::string_view xdg_state_home, std::string_view home);

// Returns the entries, oldest first, at most kMaxHistoryEntries of them. A missing file has no entries, and
// lines that are not JSON strings are left out. A file with at least twice as many entries is shortened to
// those returned.
std::vector<std::string> load_history(const std::filesystem::path& path);

// Appends one entry, and makes the file and its folders (mode 0700) where they are missing. The error names
// the file.
Result<void> append_history(const std::filesystem::path& path, std::string_view entry);

}  // namespace hadal::cli
