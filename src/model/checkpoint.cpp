#include "model/checkpoint.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <system_error>
#include <unordered_set>
#include <utility>

#include "base/log.h"
#include "base/mapped_file.h"
#include "model/weight_index.h"

namespace hadal {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxListed = 20;

// Formats names for one error line: the first twenty, then a count.
std::string listed(const std::vector<std::string>& items, std::string_view separator) {
  std::string text;
  const size_t count = std::min(items.size(), kMaxListed);
  for (size_t i = 0; i < count; ++i) {
    if (i > 0) text += separator;
    text += items[i];
  }
  if (items.size() > count) text += fmt::format("{}… and {} more", separator, items.size() - count);
  return text;
}

std::string cut_name(std::string_view name) {
  return printable_name(name, 160);
}

Status no_weights(const fs::path& dir) {
  std::vector<std::string> others;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored)) {
    const std::string name = entry.path().filename().string();
    const std::string extension = entry.path().extension().string();
    if (extension == ".safetensors" || extension == ".bin" || extension == ".pt" || extension == ".pth" ||
        extension == ".gguf") {
      others.push_back(cut_name(name));
    }
  }
  std::sort(others.begin(), others.end());
  std::string hint;
  if (!others.empty()) hint = fmt::format("; it contains {}, which are not supported", listed(others, ", "));
  return not_found("{}: no weights: neither {} nor {} exists{} (--load-format dummy needs none)",
                   dir.string(), kSingleWeightFile, kWeightIndexFile, hint);
}

}  // namespace

Result<void> Checkpoint::add_shard(const fs::path& path) {
  HADAL_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  HADAL_ASSIGN_OR_RETURN(std::vector<SafetensorsTensor> tensors,
                         parse_safetensors_header(file.bytes(), path.string()));
  for (SafetensorsTensor& tensor : tensors) {
    const auto data = file.bytes().subspan(tensor.begin, tensor.end - tensor.begin);
    entries_.push_back({.info = std::move(tensor), .data = data, .shard_idx = shards_.size()});
  }
  shards_.push_back(std::move(file));
  return {};
}

Result<Checkpoint> Checkpoint::open(const fs::path& dir) {
  std::error_code error;
  if (!fs::is_directory(dir, error)) return not_found("{}: no such directory", dir.string());
  Checkpoint checkpoint;
  checkpoint.dir_ = dir;
  std::vector<std::pair<std::string, std::string>> weight_map;
  std::vector<std::string> files;
  if (fs::exists(dir / kWeightIndexFile, error)) {
    HADAL_ASSIGN_OR_RETURN(const std::string index, read_text_file(dir / kWeightIndexFile));
    HADAL_ASSIGN_OR_RETURN(weight_map, parse_weight_map(index, (dir / kWeightIndexFile).string()));
    std::set<std::string> names;
    for (const auto& [tensor, file] : weight_map) names.insert(file);
    std::vector<std::string> missing;
    for (const std::string& name : names) {
      if (!fs::exists(dir / name, error)) missing.push_back(cut_name(name));
    }
    if (!missing.empty()) {
      return not_found("{}: {} of the {} files named by {} are missing: {}", dir.string(), missing.size(),
                       names.size(), kWeightIndexFile, listed(missing, ", "));
    }
    files.assign(names.begin(), names.end());
  } else if (fs::exists(dir / kSingleWeightFile, error)) {
    files = {kSingleWeightFile};
  } else {
    return no_weights(dir);
  }

  for (const std::string& file : files) HADAL_RETURN_IF_ERROR(checkpoint.add_shard(dir / file));
  checkpoint.by_name_.reserve(checkpoint.entries_.size());
  for (size_t i = 0; i < checkpoint.entries_.size(); ++i) {
    const auto [it, inserted] = checkpoint.by_name_.emplace(checkpoint.entries_[i].info.name, i);
    if (!inserted) {
      return data_loss("{}: tensor {} is in {} and in {}", dir.string(), cut_name(it->first),
                       files[checkpoint.entries_[it->second].shard_idx],
                       files[checkpoint.entries_[i].shard_idx]);
    }
  }
  std::vector<std::string> misplaced;
  for (const auto& [name, file] : weight_map) {
    const Entry* entry = checkpoint.find(name);
    if (entry == nullptr || files[entry->shard_idx] != file) {
      misplaced.push_back(fmt::format("{} ({})", cut_name(name), cut_name(file)));
    }
  }
  if (!misplaced.empty()) {
    return data_loss("{}: {} places {} tensors in files that lack them: {}", dir.string(), kWeightIndexFile,
                     misplaced.size(), listed(misplaced, ", "));
  }
  return checkpoint;
}

const Checkpoint::Entry* Checkpoint::find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? nullptr : &entries_[it->second];
}

namespace {

bool is_float(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kF16 || dtype == DType::kBF16;
}

constexpr std::string_view kInverseFrequencies = ".rotary_emb.inv_freq";
constexpr std::string_view kInputScale = ".input_scale";

// Returns the sizes without trailing ones, because published files store one scale per row as [n, 1] or as
// [n], and a single scale as [1] or [].
std::vector<int64_t> without_last_ones(std::vector<int64_t> shape) {
  while (!shape.empty() && shape.back() == 1) shape.pop_back();
  return shape;
}

bool shape_fits(const SafetensorsTensor& tensor, const TensorSpec& spec) {
  if (spec.role == TensorRole::kScale)
    return without_last_ones(tensor.shape) == without_last_ones(spec.shape);
  return tensor.shape == spec.shape;
}

// Returns an empty string if the tensor can serve as `spec`.
std::string misfit(const SafetensorsTensor& tensor, const TensorSpec& spec) {
  if (!shape_fits(tensor, spec)) {
    return fmt::format("{} has shape [{}], expected [{}]", spec.name, fmt::join(tensor.shape, ", "),
                       fmt::join(spec.shape, ", "));
  }
  const bool float_ok = tensor.dtype && is_float(*tensor.dtype);
  const bool code_expected = is_code(spec.dtype);
  if (float_ok || (code_expected && tensor.dtype == spec.dtype)) return {};
  if (!code_expected && is_code(tensor.dtype) && spec.role == TensorRole::kLinear) {
    const char* why = spec.left_out ? "the quantization_config of config.json leaves it out, by its list of "
                                      "modules to ignore or to convert"
                                    : "config.json has no quantization_config; only the flag --quantization "
                                      "of `hadal` reads such files, and `hadal info` shows the word to use";
    return fmt::format("{} is {}, expected BF16, F16 or F32 ({})", spec.name, safetensors_name(*tensor.dtype),
                       why);
  }
  return fmt::format("{} is {}, expected {}BF16, F16 or F32", spec.name, cut_name(tensor.dtype_name),
                     code_expected ? fmt::format("{}, ", safetensors_name(spec.dtype)) : "");
}

// Leftovers are tensors that a complete checkpoint may contain in addition to the expected ones, and that no
// computation needs.
class Leftovers {
 public:
  explicit Leftovers(const std::vector<TensorSpec>& expected) {
    for (const TensorSpec& spec : expected) {
      if (spec.role == TensorRole::kLinear && is_code(spec.dtype)) quantised_.insert(module_name(spec.name));
    }
  }

  bool takes(std::string_view name) {
    if (name.ends_with(kInverseFrequencies)) return ++num_frequencies_ > 0;
    if (!name.ends_with(kInputScale)) return false;
    name.remove_suffix(kInputScale.size());
    return quantised_.contains(name) && ++num_input_scales_ > 0;
  }

  void log() const {
    if (num_frequencies_ > 0)
      log_info("unneeded tensors ignored count={} kind=rotary_emb.inv_freq", num_frequencies_);
    if (num_input_scales_ > 0)
      log_info("static scales of activations not used count={} kind=input_scale", num_input_scales_);
  }

 private:
  std::unordered_set<std::string_view> quantised_;
  size_t num_frequencies_ = 0;
  size_t num_input_scales_ = 0;
};

}  // namespace

Result<TensorMatch> match_tensors(const Checkpoint& checkpoint, const std::vector<TensorSpec>& expected,
                                  std::string_view within) {
  TensorMatch match;
  match.entries.resize(expected.size());
  std::vector<std::string> missing, misshapen, unexpected;
  std::vector<bool> used(checkpoint.entries().size(), false);
  std::vector<std::string> missing_nextn;
  bool any_nextn = false;
  bool nextn_announced = false;
  const Checkpoint::Entry* weight = nullptr;  // the weight to which the next scale belongs
  for (size_t i = 0; i < expected.size(); ++i) {
    const TensorSpec& spec = expected[i];
    const Checkpoint::Entry* entry = checkpoint.find(spec.name);
    nextn_announced |= spec.nextn;
    if (spec.role == TensorRole::kScale) {
      // A linear that is stored unquantised has no scale; a scale beside it would be unexpected.
      const bool needed = weight != nullptr && is_code(weight->info.dtype);
      if (!needed && weight != nullptr) continue;
    }
    weight = entry;
    if (entry == nullptr) {
      if (spec.optional) continue;
      (spec.nextn ? missing_nextn : missing).push_back(spec.name);
      continue;
    }
    any_nextn |= spec.nextn;
    used[static_cast<size_t>(entry - checkpoint.entries().data())] = true;
    match.entries[i] = entry;
    if (std::string problem = misfit(entry->info, spec); !problem.empty())
      misshapen.push_back(std::move(problem));
  }
  match.has_nextn = any_nextn;
  if (any_nextn) missing.insert(missing.end(), missing_nextn.begin(), missing_nextn.end());
  if (nextn_announced && !any_nextn)
    log_info("nextn layer absent from the checkpoint dir={}", checkpoint.dir().string());

  Leftovers leftovers(expected);
  for (size_t i = 0; i < used.size(); ++i) {
    const std::string& name = checkpoint.entries()[i].info.name;
    if (!used[i] && name.starts_with(within) && !leftovers.takes(name)) unexpected.push_back(cut_name(name));
  }
  leftovers.log();
  if (missing.empty() && misshapen.empty() && unexpected.empty()) return match;

  std::vector<std::string> problems;
  for (const std::string& name : missing) problems.push_back("missing: " + name);
  for (const std::string& problem : misshapen) problems.push_back("misfit: " + problem);
  for (const std::string& name : unexpected) problems.push_back("unexpected: " + name);
  return data_loss(
      "{}: the tensors do not fit config.json ({} missing, {} of wrong shape or type, {} unexpected):{}{}",
      checkpoint.dir().string(), missing.size(), misshapen.size(), unexpected.size(),
      problems.size() == 1 ? " " : "\n  ", listed(problems, "\n  "));
}

}  // namespace hadal
