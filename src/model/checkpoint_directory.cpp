#include "model/checkpoint_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <system_error>
#include <utility>

namespace hadal {

namespace fs = std::filesystem;

UnfinishedFiles::~UnfinishedFiles() {
  std::error_code ignored;
  for (const fs::path& path : paths_) fs::remove(path, ignored);
  if (!dir_.empty()) fs::remove(dir_, ignored);  // only if empty
  if (lock_ >= 0) ::close(lock_);
}

bool UnfinishedFiles::lock(const fs::path& dir) {
  lock_ = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // On a file system without locks, only the check of the directory's contents keeps two writers apart.
  return lock_ < 0 || ::flock(lock_, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
}

void UnfinishedFiles::keep() {
  paths_.clear();
  dir_.clear();
}

Result<void> prepare_directory(const fs::path& dir, int64_t num_bytes, UnfinishedFiles& files) {
  std::error_code error;
  if (fs::exists(dir, error) && !fs::is_directory(dir, error))
    return invalid_argument("{} is not a directory", dir.string());
  const bool created = fs::create_directories(dir, error);
  if (error) return make_status(StatusCode::kInternal, "cannot create {}: {}", dir.string(), error.message());
  if (!files.lock(dir)) return invalid_argument("another process is writing to {}", dir.string());
  if (created) {
    files.add_dir(dir);
  } else {
    for (fs::directory_iterator it(dir, error); !error && it != fs::directory_iterator();
         it.increment(error)) {
      const fs::path name = it->path().filename();
      if (name.extension() == ".safetensors" || name == "config.json" || name == "generation_config.json" ||
          name == "model.safetensors.index.json")
        return invalid_argument("{} already contains {}; give a new or empty directory", dir.string(),
                                name.string());
    }
    if (error) return make_status(StatusCode::kInternal, "cannot read {}: {}", dir.string(), error.message());
  }
  std::error_code space_error;
  const fs::space_info space = fs::space(dir, space_error);
  if (!space_error && space.available < static_cast<uintmax_t>(num_bytes)) {
    return make_status(
        StatusCode::kResourceExhausted,
        "no space left on the disk: the checkpoint needs {:.2f} GiB, but {:.2f} GiB are free at {}",
        static_cast<double>(num_bytes) / 0x1p30, static_cast<double>(space.available) / 0x1p30, dir.string());
  }
  return {};
}

std::vector<std::vector<TensorSpec>> split_into_shards(std::vector<TensorSpec> specs,
                                                       int64_t max_shard_bytes) {
  std::vector<std::vector<TensorSpec>> shards;
  int64_t shard_bytes = 0;
  for (TensorSpec& spec : specs) {
    const bool full = shard_bytes + spec.num_bytes() > max_shard_bytes && spec.role != TensorRole::kScale;
    if (shards.empty() || full) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += spec.num_bytes();
    shards.back().push_back(std::move(spec));
  }
  return shards;
}

std::vector<std::string> shard_names(size_t num_shards) {
  std::vector<std::string> names;
  for (size_t i = 0; i < num_shards; ++i) {
    names.push_back(num_shards == 1 ? "model.safetensors"
                                    : fmt::format("model-{:05}-of-{:05}.safetensors", i + 1, num_shards));
  }
  return names;
}

std::string index_json(std::span<const std::vector<TensorSpec>> shards, std::span<const std::string> names,
                       int64_t total_bytes) {
  std::string text =
      fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{", total_bytes);
  const char* separator = "\n";
  for (size_t i = 0; i < shards.size(); ++i) {
    for (const TensorSpec& spec : shards[i]) {
      text += fmt::format("{}    \"{}\": \"{}\"", separator, spec.name, names[i]);
      separator = ",\n";
    }
  }
  return text + "\n  }\n}\n";
}

Result<void> write_text(const fs::path& path, std::string_view text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out)
    return make_status(StatusCode::kResourceExhausted, "cannot write {} (is the disk full?)", path.string());
  return {};
}

}  // namespace hadal
