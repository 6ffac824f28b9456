// Finds the files that come with the program. The search starts from the path of the running binary, so that
// an installed tree or an unpacked tarball may be moved as a whole.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace hadal {

// Finds the bundled checkpoint directory `name` (say "hadal-tiny"): <binary>/../share/hadal/models/<name> of
// an installed tree, or models/<name> of the source tree two levels above build/<preset>/hadal. Returns
// nullopt when neither is a directory, or when `name` is not a plain file name.
std::optional<std::filesystem::path> bundled_model(std::string_view name);

// Does the same, starting from the path of a given binary.
std::optional<std::filesystem::path> bundled_model(std::string_view name,
                                                   const std::filesystem::path& binary);

// Finds the folder of measured kernel choices, which has one folder per card:
// <binary>/../share/hadal/kernel-configs of an installed tree, or share/kernel-configs of the source tree.
// Returns nullopt when neither is a directory.
std::optional<std::filesystem::path> bundled_kernel_configs();
std::optional<std::filesystem::path> bundled_kernel_configs(const std::filesystem::path& binary);

}  // namespace hadal
