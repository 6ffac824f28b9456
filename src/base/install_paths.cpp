#include "base/install_paths.h"

#include <system_error>

namespace hadal {
namespace {

std::optional<std::filesystem::path> running_binary() {
  std::error_code error;
  auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  return binary;
}

// Returns the first of two folders that exists: `installed` below <prefix>/share/hadal of an installed tree,
// or `in_source` below the source tree.
std::optional<std::filesystem::path> folder(const std::filesystem::path& binary,
                                            const std::filesystem::path& installed,
                                            const std::filesystem::path& in_source) {
  const std::filesystem::path bin = binary.parent_path();
  const std::filesystem::path candidates[] = {
      bin.parent_path() / "share" / "hadal" / installed,
      bin.parent_path().parent_path() / in_source,
  };
  std::error_code error;
  for (const auto& candidate : candidates) {
    if (std::filesystem::is_directory(candidate, error)) return candidate;
  }
  return std::nullopt;
}

}  // namespace

std::optional<std::filesystem::path> bundled_model(std::string_view name) {
  const auto binary = running_binary();
  return binary ? bundled_model(name, *binary) : std::nullopt;
}

std::optional<std::filesystem::path> bundled_model(std::string_view name,
                                                   const std::filesystem::path& binary) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string_view::npos) {
    return std::nullopt;
  }
  const std::filesystem::path relative = std::filesystem::path("models") / name;
  return folder(binary, relative, relative);
}

std::optional<std::filesystem::path> bundled_kernel_configs() {
  const auto binary = running_binary();
  return binary ? bundled_kernel_configs(*binary) : std::nullopt;
}

std::optional<std::filesystem::path> bundled_kernel_configs(const std::filesystem::path& binary) {
  return folder(binary, "kernel-configs", std::filesystem::path("share") / "kernel-configs");
}

}  // namespace hadal
