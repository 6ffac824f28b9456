#include "tune/kernel_config.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <fstream>
#include <limits>
#include <map>
#include <system_error>

#include <boost/json.hpp>

#include "base/log.h"
#include "base/mapped_file.h"

namespace hadal {
namespace {

namespace json = boost::json;

constexpr size_t kMaxFileBytes = size_t{16} << 20;
constexpr int64_t kMaxField = int64_t{1} << 20;

std::optional<int64_t> batch_size(std::string_view key) {
  std::string_view rest = key;
  const auto value = take_config_number(rest, "");
  return value && rest.empty() ? value : std::nullopt;
}

std::string shown(const json::value& value) {
  if (!value.is_primitive()) return value.is_array() ? "a list" : "an object";
  std::string text = json::serialize(value);
  if (text.size() > 60) text = text.substr(0, 60) + "…";
  return text;
}

// Reads the fields of one entry; the first error is kept.
class EntryReader {
 public:
  EntryReader(const json::object& object, std::string_view source, std::string_view key)
      : object_(object), source_(source), key_(key) {}

  int64_t integer(std::string_view field, int64_t min, int64_t max, int64_t otherwise) {
    const json::value* value = object_.if_contains(field);
    if (value == nullptr || status_) return otherwise;
    const int64_t* number = value->if_int64();
    if (number != nullptr && *number >= min && *number <= max) return *number;
    fail(field, *value, fmt::format("a whole number in [{}, {}]", min, max));
    return otherwise;
  }
  double number(std::string_view field, double max) {
    const json::value* value = object_.if_contains(field);
    if (value == nullptr || status_) return 0.0;
    boost::system::error_code error;
    const double found = value->is_number() ? value->to_number<double>(error) : -1.0;
    if (!error && found >= 0.0 && found <= max) return found;
    fail(field, *value, fmt::format("a number in [0, {:g}]", max));
    return 0.0;
  }
  std::string text(std::string_view field) {
    const json::value* value = object_.if_contains(field);
    if (value == nullptr || status_) return {};
    if (value->is_string()) return std::string(value->get_string());
    fail(field, *value, "a string");
    return {};
  }
  const std::optional<Status>& status() const { return status_; }

 private:
  void fail(std::string_view field, const json::value& value, const std::string& allowed) {
    status_ = data_loss("{}: \"{}\": {} is {}; must be {}", source_, key_, field, shown(value), allowed);
  }

  const json::object& object_;
  std::string_view source_, key_;
  std::optional<Status> status_;
};

cuda::Choice read_choice(cuda::ProductKernel kernel, EntryReader& reader) {
  cuda::Choice choice{.kernel = kernel};
  choice.block_m = static_cast<int>(reader.integer("BLOCK_SIZE_M", 0, kMaxField, 0));
  choice.block_n = static_cast<int>(reader.integer("BLOCK_SIZE_N", 0, kMaxField, 0));
  choice.stages = static_cast<int>(reader.integer("num_stages", 0, kMaxField, 0));
  choice.splits = static_cast<int>(reader.integer("splits", 1, kMaxField, 1));
  choice.cluster = static_cast<int>(reader.integer("cluster", 1, kMaxField, 1));
  return choice;
}

Result<json::object> parse_object(std::string_view text, std::string_view source) {
  boost::system::error_code error;
  json::value document = json::parse({text.data(), text.size()}, error);
  if (error) return data_loss("{}: not JSON: {}", source, error.message());
  if (!document.is_object())
    return data_loss("{}: is {}; must be an object with batch sizes as keys", source, shown(document));
  return std::move(document.get_object());
}

// Returns nullopt if there is no such file.
Result<std::optional<std::string>> text_of(const std::filesystem::path& path) {
  std::error_code error;
  const bool exists = std::filesystem::exists(path, error);
  if (error) return data_loss("{} cannot be read: {}", path.string(), error.message());
  if (!exists) return std::optional<std::string>();
  HADAL_ASSIGN_OR_RETURN(std::string text, read_text_file(path, kMaxFileBytes));
  return std::optional(std::move(text));
}

json::object entry_object(const KernelConfigEntry& entry, WeightType type, bool experts) {
  const cuda::Choice& choice = entry.choice;
  json::object out{{"BLOCK_SIZE_M", choice.block_m},
                   {"BLOCK_SIZE_N", choice.block_n},
                   {"BLOCK_SIZE_K", cuda::block_k(choice, weight_element_bytes(type))},
                   {"GROUP_SIZE_M", cuda::group_m(choice)},
                   {"num_warps", cuda::num_warps(choice)},
                   {"num_stages", choice.stages},
                   {"kernel", to_string(choice.kernel)},
                   {"splits", choice.splits},
                   {"cluster", choice.cluster}};
  if (experts) {
    out["hidden_size"] = entry.hidden_size;
    out["rows"] = entry.rows;
  }
  out["time_us"] = std::round(entry.time_us * 1000.0) / 1000.0;
  return out;
}

bool is_foreign(const json::object& entry) {
  return !entry.contains("kernel");
}

// Returns true if another tool's entry has a field with one of our names, because then one object cannot hold
// both entries.
bool clashes(const json::object& foreign, bool experts) {
  const json::object ours = entry_object({}, WeightType::kBF16, experts);
  return std::any_of(ours.begin(), ours.end(),
                     [&](const auto& field) { return foreign.contains(field.key()); });
}

void append_pretty(const json::value& value, size_t indent, std::string& out) {
  if (const double* number = value.if_double()) {
    const std::string digits = fmt::format("{}", *number);
    out += digits + (digits.find_first_of(".e") == std::string::npos ? ".0" : "");
  } else if (value.is_object() && !value.get_object().empty()) {
    const std::string space(indent + 4, ' ');
    const char* before = "{\n";
    for (const auto& [key, field] : value.get_object()) {
      out += before + space + json::serialize(json::string(key)) + ": ";
      append_pretty(field, indent + 4, out);
      before = ",\n";
    }
    out += "\n" + std::string(indent, ' ') + "}";
  } else {
    out += json::serialize(value);
  }
}

// Formats a file: first the entries that are not batch sizes, in their order, then batch sizes ascending.
std::string pretty_file(const json::object& document) {
  json::object ordered;
  std::map<int64_t, json::value> batches;
  for (const auto& [key, value] : document) {
    if (const auto batch = batch_size({key.data(), key.size()})) {
      batches[*batch] = value;
    } else {
      ordered[key] = value;
    }
  }
  for (auto& [batch, value] : batches) ordered[std::to_string(batch)] = std::move(value);
  std::string out;
  if (ordered.empty()) return "{\n}\n";
  append_pretty(ordered, 0, out);
  return out + "\n";
}

}  // namespace

Result<KernelConfigFile> parse_kernel_config(std::string_view text, std::string_view source, bool experts) {
  HADAL_ASSIGN_OR_RETURN(const json::object document, parse_object(text, source));
  KernelConfigFile file;
  for (const auto& [key, value] : document) {
    const std::string_view name(key.data(), key.size());
    const auto batch = batch_size(name);
    if (!batch) {
      if (!value.is_object()) continue;  // data that another tuner writes about itself
      return data_loss("{}: \"{}\" is not a batch size; must be a whole number from 1 on", source, name);
    }
    if (!value.is_object())
      return data_loss("{}: \"{}\" is {}; must be an object", source, name, shown(value));
    const json::object& object = value.get_object();
    if (is_foreign(object)) {
      ++file.num_foreign;
      if (clashes(object, experts)) file.clashing.push_back(*batch);
      continue;
    }
    EntryReader reader(object, source, name);
    const std::string kernel_name = reader.text("kernel");
    const auto kernel = cuda::parse_product_kernel(kernel_name);
    KernelConfigEntry entry{.batch = *batch};
    entry.choice = read_choice(kernel.value_or(cuda::ProductKernel::kReference), reader);
    entry.time_us = reader.number("time_us", 1e12);
    if (experts) {
      entry.hidden_size = reader.integer("hidden_size", 1, kMaxConfigSize, 0);
      entry.rows = reader.integer("rows", 1, kMaxConfigSize, 0);
    }
    if (reader.status()) return *reader.status();
    if (!kernel) {
      file.unknown.push_back(fmt::format("\"{}\": kernel \"{}\" does not exist in this version", name,
                                         kernel_name.substr(0, 60)));
      file.later.push_back(*batch);
      continue;
    }
    if (experts && (entry.hidden_size == 0 || entry.rows == 0)) {
      return data_loss("{}: \"{}\": {} is missing; must be a whole number from 1 on", source, name,
                       entry.hidden_size == 0 ? "hidden_size" : "rows");
    }
    file.entries.push_back(entry);
  }
  std::stable_sort(file.entries.begin(), file.entries.end(),
                   [](const auto& a, const auto& b) { return a.batch < b.batch; });
  return file;
}

std::string kernel_config_json(std::span<const KernelConfigEntry> entries, WeightType type, bool experts) {
  json::object document;
  for (const KernelConfigEntry& entry : entries)
    document[std::to_string(entry.batch)] = entry_object(entry, type, experts);
  return pretty_file(document);
}

Result<KernelConfigFile> read_kernel_config(const std::filesystem::path& dir, const KernelConfigName& name) {
  const std::filesystem::path path = dir / file_name(name);
  HADAL_ASSIGN_OR_RETURN(const std::optional<std::string> text, text_of(path));
  if (!text) return KernelConfigFile{};
  return parse_kernel_config(*text, path.string(), name.num_experts > 0);
}

Status clashing_entry(const std::filesystem::path& dir, const KernelConfigName& name, int64_t batch) {
  return invalid_argument(
      "{}: \"{}\" was written by another tool but uses hadal's field names; move it to another file, or use "
      "other batch sizes or another directory",
      (dir / file_name(name)).string(), batch);
}

Result<void> write_kernel_config(const std::filesystem::path& dir, const KernelConfigName& name,
                                 std::span<const KernelConfigEntry> entries) {
  const bool experts = name.num_experts > 0;
  const std::filesystem::path path = dir / file_name(name);
  const std::filesystem::path partial = dir / fmt::format(".{}.{}", file_name(name), ::getpid());
  json::object document;
  HADAL_ASSIGN_OR_RETURN(const std::optional<std::string> text, text_of(path));
  if (text) {
    HADAL_ASSIGN_OR_RETURN(document, parse_object(*text, path.string()));
  }
  for (const KernelConfigEntry& entry : entries) {
    json::value& stored = document[std::to_string(entry.batch)];
    json::object ours = entry_object(entry, name.type, experts);
    if (stored.is_object() && is_foreign(stored.get_object())) {
      if (clashes(stored.get_object(), experts)) return clashing_entry(dir, name, entry.batch);
      for (const auto& [field, value] : ours) stored.get_object()[field] = value;
    } else {
      stored = std::move(ours);
    }
  }
  {
    std::ofstream out(partial, std::ios::binary | std::ios::trunc);
    out << pretty_file(document);
    out.close();
    if (!out) {
      const std::string why = std::strerror(errno);
      std::error_code ignored;
      std::filesystem::remove(partial, ignored);
      return make_status(StatusCode::kInternal, "{} cannot be written: {}", path.string(), why);
    }
  }
  std::error_code error;
  std::filesystem::rename(partial, path, error);
  if (!error) return {};
  std::error_code ignored;
  std::filesystem::remove(partial, ignored);
  return make_status(StatusCode::kInternal, "{} cannot be written: {}", path.string(), error.message());
}

cuda::LinearShape linear_shape_of(const KernelConfigName& name, int64_t batch, int num_sms) {
  return {.type = name.type, .m = batch, .n = name.n, .k = name.k, .num_sms = num_sms};
}

cuda::GroupedShape grouped_shape_of(const KernelConfigName& name, int64_t hidden_size, int64_t rows,
                                    int num_sms) {
  return {.type = name.type,
          .num_rows = rows,
          .num_experts = static_cast<int>(std::min<int64_t>(name.num_experts, 1 << 20)),
          .n = name.down ? hidden_size : 2 * name.n,
          .k = name.down ? name.n : hidden_size,
          .num_sms = num_sms};
}

namespace {
// Returns true if a file's folder is the directory itself or the folder in it that is named after the card.
bool is_below(const std::filesystem::path& folder, const std::filesystem::path& dir,
              std::string_view device) {
  const std::string card = card_name(device);
  return folder == (dir / "x").parent_path() || folder == (dir / card / "x").parent_path();
}
}  // namespace

Result<cuda::ProductChoices> load_kernel_configs(std::span<const std::filesystem::path> dirs,
                                                 std::string_view device, int num_sms,
                                                 const std::optional<std::filesystem::path>& named) {
  std::vector<std::filesystem::path> folders;
  for (const std::filesystem::path& dir : dirs) {
    std::error_code error;
    if (!std::filesystem::is_directory(dir, error))
      return not_found("kernel configs: {} is not a directory", dir.string());
    folders.push_back(dir);
    if (std::filesystem::is_directory(dir / card_name(device), error))
      folders.push_back(dir / card_name(device));
  }
  std::map<std::string, std::pair<KernelConfigName, std::filesystem::path>> files;
  for (const std::filesystem::path& dir : folders) {
    std::error_code error;
    for (auto it = std::filesystem::directory_iterator(dir, error); !error && it != std::filesystem::end(it);
         it.increment(error)) {
      const std::string file = it->path().filename().string();
      if (const auto name = parse_file_name(file, device)) files[file] = {*name, it->path()};
    }
    if (error) return data_loss("kernel configs: {} cannot be read: {}", dir.string(), error.message());
  }
  cuda::ProductChoices choices;
  size_t num_entries = 0;
  bool uses_named = false;
  for (const auto& [file, found] : files) {
    const auto& [name, path] = found;
    HADAL_ASSIGN_OR_RETURN(const KernelConfigFile config, read_kernel_config(path.parent_path(), name));
    if (config.num_foreign > 0) {
      log_info("kernel config entries of other kernels ignored file=\"{}\" entries={}", path.string(),
               config.num_foreign);
    }
    std::vector<std::string> unused = config.unknown;
    for (const KernelConfigEntry& entry : config.entries) {
      bool fits = false;
      if (name.num_experts > 0) {
        cuda::GroupedShape shape = grouped_shape_of(name, entry.hidden_size, entry.rows, num_sms);
        fits = may_be_chosen(entry.choice) && supports(entry.choice, shape);
        if (fits) {
          choices.grouped.set(shape.type, shape.num_experts, shape.n, shape.k, entry.rows, entry.choice,
                              entry.batch >= cuda::kLargestMeasuredBatch);
        }
      } else {
        fits = may_be_chosen(entry.choice) &&
               supports(entry.choice, linear_shape_of(name, entry.batch, num_sms));
        if (fits) choices.linear.set(name.type, name.n, name.k, entry.batch, entry.choice);
      }
      num_entries += fits ? 1 : 0;
      uses_named |= fits && named && is_below(path.parent_path(), *named, device);
      if (fits) continue;
      unused.push_back(fmt::format("\"{}\": {} is not compiled or does not support it", entry.batch,
                                   to_string(entry.choice)));
    }
    if (!unused.empty()) {
      const size_t shown = std::min<size_t>(unused.size(), 4);
      log_warning("kernel config entries not used file=\"{}\" entries={}: {}{}", path.string(), unused.size(),
                  fmt::join(unused.begin(), unused.begin() + static_cast<std::ptrdiff_t>(shown), "; "),
                  shown < unused.size() ? "; ..." : "");
    }
  }
  if (named && !uses_named) {
    log_warning(
        "kernel configs without effect dir=\"{}\" device=\"{}\" hint=\"files are named for the card, "
        "as `hadal tune` writes them\"",
        named->string(), device);
  }
  std::string names;
  for (const std::filesystem::path& dir : dirs) names += (names.empty() ? "" : ", ") + dir.string();
  if (!dirs.empty()) {
    log_info("kernel configs dirs=\"{}\" device=\"{}\" files={} shapes={} entries={}", names, device,
             files.size(), choices.linear.num_shapes() + choices.grouped.num_shapes(), num_entries);
  }
  return choices;
}

}  // namespace hadal
