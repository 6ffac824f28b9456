#include "tune/tuner.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <iterator>
#include <map>
#include <system_error>

namespace hadal {
namespace {

constexpr int64_t kMostRouterOutputs = int64_t{1} << 16;

// These are properties of an H200, and of how products are measured (tune/product_measurer.cpp).
constexpr double kBytesPerSecond = 3.5e12;
constexpr double kFp8Operations = 1.1e15, kBf16Operations = 0.6e15;
constexpr double kSecondsPerMeasurement = 0.5e-3;  // time on the host
constexpr double kGraphSeconds = 0.3e-3;
constexpr double kSearchMeasurements = 22, kLaterReplays = 4 * 3 + 2 * 8;

struct Item {
  const ProductSpec* product = nullptr;
  size_t file = 0;
  int64_t batch = 0;
  TuneField field;
  bool between = false;  // only compared with its neighbours
};

cuda::GroupedShape expert_shape(const ProductSpec& product, int64_t batch, int num_sms) {
  cuda::GroupedShape shape =
      grouped_shape_of(product.name, product.hidden_size, product.rows(batch), num_sms);
  shape.rows_per_token = static_cast<int>(product.rows(1));
  return shape;
}

cuda::LinearShape dense_shape(const ProductSpec& product, int64_t batch, int num_sms) {
  cuda::LinearShape shape = linear_shape_of(product.name, batch, num_sms);
  shape.f32_y = product.f32_y;
  return shape;
}

struct File {
  KernelConfigName name;
  bool written = false;
  std::map<int64_t, cuda::Choice> choices;  // by batch: those in the file, and those found in this run
};

// Returns the choices of the nearest smaller and larger batch size.
std::vector<cuda::Choice> around(const File& file, int64_t batch) {
  std::vector<cuda::Choice> out;
  const auto above = file.choices.upper_bound(batch);
  const auto below = file.choices.lower_bound(batch);
  if (below != file.choices.begin()) out.push_back(std::prev(below)->second);
  if (above != file.choices.end()) out.push_back(above->second);
  return out;
}

// Returns those of `choices` that are candidates, each once.
std::vector<cuda::Choice> among(const std::vector<cuda::Choice>& candidates,
                                const std::vector<cuda::Choice>& choices) {
  std::vector<cuda::Choice> out;
  for (const cuda::Choice& choice : choices) {
    const auto in = [&](const std::vector<cuda::Choice>& list) {
      return std::find(list.begin(), list.end(), choice) != list.end();
    };
    if (in(candidates) && !in(out)) out.push_back(choice);
  }
  return out;
}

// Returns true for float32 products computed one by one, which are useful for few outputs only and too slow
// to be tried for many.
bool hopeless(const cuda::Choice& choice, const ProductSpec& product, int64_t batch) {
  return choice.kernel == cuda::ProductKernel::kRouter && product.name.type != WeightType::kF32 &&
         batch * product.name.n > kMostRouterOutputs;
}

// Returns true if the file has an entry for the batch size that a run must keep: a choice that supports the
// product, or an entry of a later version. It is an error, which names file, key and value, if an entry of
// another tool or model occupies the place of ours.
Result<bool> is_there(const KernelConfigFile& stored, const std::filesystem::path& dir,
                      const KernelConfigName& name, const ProductSpec& product, int64_t batch, int num_sms) {
  const auto has = [&](const std::vector<int64_t>& batches) {
    return std::find(batches.begin(), batches.end(), batch) != batches.end();
  };
  if (has(stored.clashing)) return clashing_entry(dir, name, batch);
  if (has(stored.later)) return true;
  for (const KernelConfigEntry& entry : stored.entries) {
    if (entry.batch != batch || !may_be_chosen(entry.choice)) continue;
    if (name.num_experts == 0) return supports(entry.choice, dense_shape(product, batch, num_sms));
    const auto differs = [&](const char* field, int64_t value, int64_t ours) {
      return invalid_argument(
          "{}: \"{}\": {} is {}, which belongs to another model's experts; must be {}; use another "
          "--output-dir",
          (dir / file_name(name)).string(), batch, field, value, ours);
    };
    if (entry.hidden_size != product.hidden_size)
      return differs("hidden_size", entry.hidden_size, product.hidden_size);
    if (entry.rows != product.rows(batch)) return differs("rows", entry.rows, product.rows(batch));
    return supports(entry.choice, expert_shape(product, batch, num_sms));
  }
  return false;
}

}  // namespace

bool is_searched(int64_t batch) {
  return std::find(std::begin(kSearchedBatches), std::end(kSearchedBatches), batch) !=
         std::end(kSearchedBatches);
}

namespace {

// Returns true if a file can be created there; the file is removed again.
bool is_writable(const std::filesystem::path& dir) {
  const std::filesystem::path probe = dir / fmt::format(".hadal-tune-{}", ::getpid());
  std::ofstream out(probe);
  out.close();
  const bool written = static_cast<bool>(out);
  std::error_code ignored;
  std::filesystem::remove(probe, ignored);
  return written;
}

Status no_directory(const std::filesystem::path& dir) {
  return invalid_argument("--output-dir {}: is not a directory and cannot be made one", dir.string());
}

Result<void> make_output_dir(const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (!std::filesystem::is_directory(dir, error)) return no_directory(dir);
  return check_output_dir(dir);
}

}  // namespace

Result<void> check_output_dir(const std::filesystem::path& dir) {
  std::error_code error;
  if (std::filesystem::is_directory(dir, error)) {
    if (is_writable(dir)) return {};
    return invalid_argument("--output-dir {}: cannot be written to", dir.string());
  }
  // This is the longest part of the path that exists. The rest must be created in it.
  std::filesystem::path there = std::filesystem::absolute(dir, error);
  while (!std::filesystem::exists(there, error) && there.has_relative_path()) there = there.parent_path();
  if (!std::filesystem::is_directory(there, error) || !is_writable(there)) return no_directory(dir);
  return {};
}

std::vector<int64_t> distinct(const std::vector<int64_t>& values) {
  std::vector<int64_t> out;
  for (const int64_t value : values) {
    if (std::find(out.begin(), out.end(), value) == out.end()) out.push_back(value);
  }
  return out;
}

std::vector<StoredChoices> stored_choices(const std::vector<ProductSpec>& products,
                                          const std::vector<int64_t>& batches,
                                          const std::filesystem::path& dir, int num_sms) {
  std::map<std::string, StoredChoices> found;
  const auto of_device = [&](const std::string& device) {
    StoredChoices stored{.device = device};
    for (const ProductSpec& product : products) {
      KernelConfigName name = product.name;
      name.device = device;
      const auto file = read_kernel_config(dir, name);
      stored.refusal = file.ok() ? std::string() : file.status().message;
      for (size_t i = 0; i < batches.size() && stored.refusal.empty(); ++i) {
        const auto there = is_there(*file, dir, name, product, batches[i], num_sms);
        if (!there.ok()) stored.refusal = there.status().message;
        stored.num_kept += there.ok() && *there ? 1 : 0;
      }
      if (!stored.refusal.empty()) break;
    }
    return stored;
  };
  std::error_code error;
  for (std::filesystem::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    const std::string device = device_in_file_name(it->path().filename().string());
    if (!device.empty() && !found.contains(device)) found.emplace(device, of_device(device));
  }
  std::vector<StoredChoices> out;
  for (auto& [device, stored] : found) out.push_back(std::move(stored));
  return out;
}

TuneField tune_field(const ProductSpec& product, int64_t batch, int num_sms) {
  if (product.name.num_experts > 0) {
    const cuda::GroupedShape sorted = expert_shape(product, batch, num_sms);
    // The input rows of down are always sorted. Those of gate_up are gathered if an engine without files
    // would gather them.
    cuda::GroupedShape shape = sorted;
    shape.gathered = !product.name.down && !wants_sorted(sorted, nullptr);
    return {heuristic(shape), valid_choices(sorted)};
  }
  const cuda::LinearShape shape = dense_shape(product, batch, num_sms);
  TuneField field{heuristic(shape), valid_choices(shape)};
  std::erase_if(field.candidates, [&](const cuda::Choice& c) { return hopeless(c, product, batch); });
  return field;
}

double expected_seconds(const ProductSpec& product, int64_t batch, const TuneField& field, bool every) {
  if (field.candidates.size() < 2) return 0.0;
  const bool experts = product.name.num_experts > 0;
  const auto rows = static_cast<double>(experts ? product.rows(batch) : batch);
  const bool eight_bits = has_scales(product.name.type);
  const double elements =
      product.weight_bytes() / static_cast<double>(weight_element_bytes(product.name.type));
  const double matrices = experts ? static_cast<double>(product.name.num_experts) : 1.0;
  const double touched = experts ? std::min(1.0, rows / matrices) : 1.0;
  const double operations = 2.0 * rows * elements / matrices;
  const double call = std::max(product.weight_bytes() * touched / kBytesPerSecond,
                               operations / (eight_bits ? kFp8Operations : kBf16Operations));
  const double graph = std::max(kGraphSeconds, 2.0 * call);
  const auto candidates = static_cast<double>(field.candidates.size());
  const double first = every ? candidates : std::min(candidates, kSearchMeasurements);
  // The graph of each candidate runs twice, first when it is built. Another factor of 2 allows for slow
  // candidates, which are half of them, and for the pauses in which a hot card cools.
  return first * (kSecondsPerMeasurement + 2.0 * 2.0 * graph) + kLaterReplays * 1.5 * graph;
}

HeuristicVerdict judge_heuristic(const std::vector<TuneRow>& rows) {
  HeuristicVerdict verdict;
  for (const TuneRow& row : rows) {
    if (!row.result.complete || row.between) continue;
    const double excess = row.result.heuristic_us / row.result.chosen().us - 1.0;
    ++verdict.num_rows;
    verdict.num_close += excess <= kCloseToTuned ? 1 : 0;
    if (verdict.worst != nullptr && excess <= verdict.worst_excess) continue;
    verdict.worst = &row;
    verdict.worst_excess = excess;
  }
  return verdict;
}

Result<TuneReport> tune(const std::vector<ProductSpec>& products, const std::vector<int64_t>& batches,
                        MeasurerSource& source, const TuneOptions& options) {
  HADAL_RETURN_IF_ERROR(make_output_dir(options.output_dir));
  TuneReport report;
  std::vector<File> files;
  std::vector<Item> items;
  for (const ProductSpec& product : products) {
    File file{.name = product.name};
    file.name.device = source.device_name();
    HADAL_ASSIGN_OR_RETURN(const KernelConfigFile stored, read_kernel_config(options.output_dir, file.name));
    for (const int64_t batch : batches) {
      HADAL_ASSIGN_OR_RETURN(const bool there, is_there(stored, options.output_dir, file.name, product, batch,
                                                        source.num_sms()));
      if (there && !options.again) {
        ++report.num_kept;
        for (const KernelConfigEntry& entry : stored.entries) {
          if (entry.batch == batch) file.choices[batch] = entry.choice;
        }
        continue;
      }
      TuneField field = tune_field(product, batch, source.num_sms());
      if (field.candidates.size() < 2) {
        ++report.num_single;
        continue;
      }
      items.push_back(
          {&product, files.size(), batch, std::move(field), options.compare_between && !is_searched(batch)});
    }
    files.push_back(std::move(file));
  }
  std::stable_partition(items.begin(), items.end(), [](const Item& item) { return !item.between; });

  const double end = options.now() + options.seconds;
  for (size_t i = 0; i < items.size(); ++i) {
    Item& item = items[i];
    File& file = files[item.file];
    std::vector<cuda::Choice> likely = among(item.field.candidates, around(file, item.batch));
    if (item.between) {
      likely.push_back(item.field.heuristic);
      item.field.candidates = among(item.field.candidates, likely);
      if (item.field.candidates.size() < 2) {
        ++report.num_agreeing;
        continue;
      }
    }
    if (options.interrupted() || options.now() >= end) {
      ++report.num_left;
      continue;
    }
    options.progress(i, items.size(), fmt::format("{} m {}", item.product->label, item.batch));
    HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<ChoiceMeasurer> measurer,
                           source.measurer(*item.product, item.batch));
    const double left = std::max(0.0, end - options.now());
    HADAL_ASSIGN_OR_RETURN(SearchResult result,
                           find_fastest(item.field.candidates, item.field.heuristic, *measurer,
                                        {.seconds = left / static_cast<double>(items.size() - i),
                                         .every = options.every || item.between,
                                         .likely = likely,
                                         .now = options.now,
                                         .interrupted = options.interrupted}));
    // If not even the first round was finished, the next run starts this search anew.
    if (result.num_rounds == 0) {
      ++report.num_left;
      continue;
    }
    const MeasuredChoice& chosen = result.chosen();
    const bool experts = item.product->name.num_experts > 0;
    const KernelConfigEntry entry{.batch = item.batch,
                                  .choice = chosen.choice,
                                  .time_us = chosen.us,
                                  .hidden_size = experts ? item.product->hidden_size : 0,
                                  .rows = experts ? item.product->rows(item.batch) : 0};
    HADAL_RETURN_IF_ERROR(write_kernel_config(options.output_dir, file.name, {&entry, 1}));
    if (!file.written) report.files.push_back(options.output_dir / file_name(file.name));
    file.written = true;
    file.choices[item.batch] = chosen.choice;
    report.num_incomplete += result.complete ? 0 : 1;
    report.rows.push_back({item.product, item.batch, item.between, std::move(result)});
  }
  return report;
}

}  // namespace hadal
