// Where the files that come with the program lie, found from the running binary: an installed tree or an
// unpacked tarball may be moved as a whole.
#pragma once

#include <filesystem>
#include <optional>
#include <string_view>

namespace hadal {

// The bundled checkpoint directory `name` (say "hadal-tiny"): <binary>/../share/hadal/models/<name> of an
// installed tree, or models/<name> of the source tree two levels above build/<preset>/hadal. Nothing when
// neither is a directory, or `name` is not a plain file name.
std::optional<std::filesystem::path> bundled_model(std::string_view name);

// The same from a given binary's path.
std::optional<std::filesystem::path> bundled_model(std::string_view name,
                                                   const std::filesystem::path& binary);

// The folder of measured kernel choices: <binary>/../share/hadal/kernel-configs of an installed tree, or
// kernel-configs of the source tree. Nothing when neither is a directory.
std::optional<std::filesystem::path> bundled_kernel_configs();
std::optional<std::filesystem::path> bundled_kernel_configs(const std::filesystem::path& binary);

}  // namespace hadal
