// `hadal tune` without its words: products times batch sizes are searched one by one, each within its share
// of the time that is left, and what is found goes into the files of kernel choices at once, so that nothing
// done is lost. What is in the files already is kept, entries of other tools and of later versions too.
// Batch sizes between those of kSearchedBatches come last: where the choices of the sizes around one differ
// from each other or from the heuristic's, these are compared, and nothing where they do not, for then the
// files say the same without it. Host code; devices come in through MeasurerSource. One thread.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/kernel_config.h"
#include "engine/tune_search.h"
#include "engine/tune_shapes.h"

namespace hadal {

// Batch sizes of SGLang's own files.
inline constexpr int64_t kTunedBatches[] = {1,  2,   4,   8,   16,   24,   32,   48,   64,
                                            96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096};
// Of these the ones that are searched whatever their neighbours chose, where nobody names batch sizes.
inline constexpr int64_t kSearchedBatches[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
bool is_searched(int64_t batch);

// Where products are measured.
class MeasurerSource {
 public:
  virtual ~MeasurerSource() = default;
  virtual std::string device_name() const = 0;
  virtual int num_sms() const = 0;
  // For one product at one batch size, until the next call. Errors: no room on the device.
  virtual Result<std::unique_ptr<ChoiceMeasurer>> measurer(const ProductSpec& product, int64_t batch) = 0;
};

// GPU 0. Error: kUnsupported without a usable one (engine/cuda/product_measurer.cpp, or its stub).
Result<std::unique_ptr<MeasurerSource>> open_gpu_measurers();

// What there is to choose from for a product at a batch size.
struct TuneField {
  cuda::Choice heuristic;
  std::vector<cuda::Choice> candidates;
};
TuneField tune_field(const ProductSpec& product, int64_t batch, int num_sms);

// Seconds that a device of an H200's speed takes to search it, about.
double expected_seconds(const ProductSpec& product, int64_t batch, const TuneField& field, bool every);

struct TuneRow {
  const ProductSpec* product = nullptr;
  int64_t batch = 0;
  bool between = false;  // compared with the sizes around it, not searched
  SearchResult result;
};

// Whether the files will find room, tried with a file that is gone again, in what there is of the directory;
// it is not made. Error: kInvalidArgument, naming --output-dir.
Result<void> check_output_dir(const std::filesystem::path& dir);

// Each once, where it is named first.
std::vector<int64_t> distinct(const std::vector<int64_t>& values);

// What a directory has for a card whose files lie there.
struct StoredChoices {
  std::string device;   // as the files' names have it: "NVIDIA_H200"
  int num_kept = 0;     // products at batch sizes that a run leaves as they are
  std::string refusal;  // why a run on it would end before anything is measured; empty: it would not
};
std::vector<StoredChoices> stored_choices(const std::vector<ProductSpec>& products,
                                          const std::vector<int64_t>& batches,
                                          const std::filesystem::path& dir, int num_sms);

struct TuneOptions {
  std::filesystem::path output_dir;
  double seconds = 280.0;        // for everything
  bool again = false;            // measure also what the files have
  bool every = false;            // measure every choice (SearchOptions::every)
  bool compare_between = false;  // batch sizes outside of kSearchedBatches are only compared
  std::function<double()> now;
  std::function<bool()> interrupted;
  std::function<void(size_t done, size_t total, const std::string& what)> progress;
};

struct TuneReport {
  std::vector<TuneRow> rows;  // in the order of measuring
  int num_kept = 0;           // were in the files
  int num_single = 0;         // with one choice: nothing to measure
  int num_agreeing = 0;       // between batch sizes with equal choices: nothing to compare
  int num_incomplete = 0;     // of rows: their time ended before the search did
  int num_left = 0;           // not measured, or only in part: interrupted, or the time was over
  std::vector<std::filesystem::path> files;  // written
};

// How far the heuristic is from the choices found. A row counts that was searched to its end: of sizes that
// were only compared the fastest choice is not known.
struct HeuristicVerdict {
  int num_rows = 0;
  int num_close = 0;               // within kCloseToTuned
  const TuneRow* worst = nullptr;  // null without rows
  double worst_excess = 0.0;       // its time over the choice's, less 1
};
inline constexpr double kCloseToTuned = 0.05;
HeuristicVerdict judge_heuristic(const std::vector<TuneRow>& rows);

// Errors: a file that cannot be read or written (the directory is made and tried before anything is
// measured), another tool's or another model's entry where ours would go (before anything is measured), a
// measurement that failed; files written before stay.
Result<TuneReport> tune(const std::vector<ProductSpec>& products, const std::vector<int64_t>& batches,
                        MeasurerSource& source, const TuneOptions& options);

}  // namespace hadal
