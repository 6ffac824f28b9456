#include "base/install_paths.h"

#include <system_error>

namespace hadal {

std::optional<std::filesystem::path> bundled_model(std::string_view name) {
  std::error_code error;
  const auto binary = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error) return std::nullopt;
  return bundled_model(name, binary);
}

std::optional<std::filesystem::path> bundled_model(std::string_view name,
                                                   const std::filesystem::path& binary) {
  if (name.empty() || name == "." || name == ".." || name.find('/') != std::string_view::npos) {
    return std::nullopt;
  }
  const std::filesystem::path folder = binary.parent_path();
  const std::filesystem::path candidates[] = {
      folder.parent_path() / "share" / "hadal" / "models" / name,
      folder.parent_path().parent_path() / "models" / name,
  };
  std::error_code error;
  for (const auto& candidate : candidates) {
    if (std::filesystem::is_directory(candidate, error)) return candidate;
  }
  return std::nullopt;
}

}  // namespace hadal
