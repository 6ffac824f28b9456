#include "engine/tuner.h"

#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <system_error>

namespace hadal {
namespace {

struct Item {
  const ProductSpec* product = nullptr;
  size_t file = 0;
  int64_t batch = 0;
  TuneField field;
};

cuda::GroupedShape expert_shape(const ProductSpec& product, int64_t batch, int num_sms) {
  return grouped_shape_of(product.name, product.hidden_size, product.rows(batch), num_sms);
}

cuda::LinearShape dense_shape(const ProductSpec& product, int64_t batch, int num_sms) {
  cuda::LinearShape shape = linear_shape_of(product.name, batch, num_sms);
  shape.f32_y = product.f32_y;
  return shape;
}

struct File {
  KernelConfigName name;
  bool written = false;
};

// What the file has for the batch size that a run leaves as it is: a choice that takes the product, or that
// of a later version. Errors, naming file, key and value: an entry that ours has no room beside.
Result<bool> is_there(const KernelConfigFile& stored, const std::filesystem::path& dir,
                      const KernelConfigName& name, const ProductSpec& product, int64_t batch, int num_sms) {
  const auto has = [&](const std::vector<int64_t>& batches) {
    return std::find(batches.begin(), batches.end(), batch) != batches.end();
  };
  if (has(stored.clashing)) return clashing_entry(dir, name, batch);
  if (has(stored.later)) return true;
  for (const KernelConfigEntry& entry : stored.entries) {
    if (entry.batch != batch || !may_be_chosen(entry.choice)) continue;
    if (name.num_experts == 0) return takes(entry.choice, dense_shape(product, batch, num_sms));
    const auto differs = [&](const char* field, int64_t value, int64_t ours) {
      return invalid_argument(
          "{}: \"{}\": {} is {}, of another model's experts; here it is {}: another --output-dir must be "
          "taken",
          (dir / file_name(name)).string(), batch, field, value, ours);
    };
    if (entry.hidden_size != product.hidden_size)
      return differs("hidden_size", entry.hidden_size, product.hidden_size);
    if (entry.rows != product.rows(batch)) return differs("rows", entry.rows, product.rows(batch));
    return takes(entry.choice, expert_shape(product, batch, num_sms));
  }
  return false;
}

}  // namespace

Result<void> check_output_dir(const std::filesystem::path& dir) {
  std::error_code error;
  std::filesystem::create_directories(dir, error);
  if (!std::filesystem::is_directory(dir, error))
    return invalid_argument("--output-dir {}: is not a directory and cannot be made one", dir.string());
  const std::filesystem::path probe = dir / fmt::format(".hadal-tune-{}", ::getpid());
  std::ofstream out(probe);
  out.close();
  const bool written = static_cast<bool>(out);
  std::filesystem::remove(probe, error);
  if (written) return {};
  return invalid_argument("--output-dir {}: cannot be written to", dir.string());
}

TuneField tune_field(const ProductSpec& product, int64_t batch, int num_sms) {
  if (product.name.num_experts > 0) {
    const cuda::GroupedShape shape = expert_shape(product, batch, num_sms);
    return {heuristic(shape), valid_choices(shape)};
  }
  const cuda::LinearShape shape = dense_shape(product, batch, num_sms);
  return {heuristic(shape), valid_choices(shape)};
}

Result<TuneReport> tune(const std::vector<ProductSpec>& products, const std::vector<int64_t>& batches,
                        MeasurerSource& source, const TuneOptions& options) {
  HADAL_RETURN_IF_ERROR(check_output_dir(options.output_dir));
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
        continue;
      }
      TuneField field = tune_field(product, batch, source.num_sms());
      if (field.candidates.size() < 2) {
        ++report.num_single;
        continue;
      }
      items.push_back({&product, files.size(), batch, std::move(field)});
    }
    files.push_back(std::move(file));
  }

  const double end = options.now() + options.seconds;
  for (size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    File& file = files[item.file];
    if (options.interrupted() || options.now() >= end) {
      report.num_left += static_cast<int>(items.size() - i);
      break;
    }
    options.progress(i, items.size(), fmt::format("{} m {}", item.product->label, item.batch));
    HADAL_ASSIGN_OR_RETURN(const std::unique_ptr<ChoiceMeasurer> measurer,
                           source.measurer(*item.product, item.batch));
    const double left = std::max(0.0, end - options.now());
    HADAL_ASSIGN_OR_RETURN(SearchResult result,
                           find_fastest(item.field.candidates, item.field.heuristic, *measurer,
                                        {.seconds = left / static_cast<double>(items.size() - i),
                                         .now = options.now,
                                         .interrupted = options.interrupted}));
    // Where not even every candidate was measured once, the next run begins again.
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
    report.num_incomplete += result.complete ? 0 : 1;
    report.rows.push_back({item.product, item.batch, std::move(result)});
  }
  return report;
}

}  // namespace hadal
