// Runs `hadal tune` without its command line: products times batch sizes are searched one by one, each within
// its share of the remaining time, and every result is written to the files of kernel choices at once, so
// that no work is lost. Existing entries are kept, including those of other tools and of later versions.
// Batch sizes between those of kSearchedBatches come last. If the choices for the sizes around such a size
// differ from each other or from the heuristic's choice, these choices are compared. Otherwise nothing is
// measured, because the files mean the same without it. It is host code; devices are accessed through
// MeasurerSource. One thread uses it.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tune/kernel_config.h"
#include "tune/tune_search.h"
#include "tune/tune_shapes.h"

namespace hadal {

// These are the batch sizes of SGLang's own files.
inline constexpr int64_t kTunedBatches[] = {1,  2,   4,   8,   16,   24,   32,   48,   64,
                                            96, 128, 256, 512, 1024, 1536, 2048, 3072, 4096};
// If no batch sizes are given, tuning always searches these, whatever was chosen for their neighbours.
inline constexpr int64_t kSearchedBatches[] = {1, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
bool is_searched(int64_t batch);

// MeasurerSource is the device on which products are measured.
class MeasurerSource {
 public:
  virtual ~MeasurerSource() = default;
  virtual std::string device_name() const = 0;
  virtual int num_sms() const = 0;
  // Returns a measurer for one product at one batch size, valid until the next call. It is an error if the
  // device has not enough memory.
  virtual Result<std::unique_ptr<ChoiceMeasurer>> measurer(const ProductSpec& product, int64_t batch) = 0;
};

// Opens GPU 0. The error is kUnsupported if none is usable (tune/product_measurer.cpp, or its stub).
Result<std::unique_ptr<MeasurerSource>> open_gpu_measurers();

// Holds the choices for a product at a batch size.
struct TuneField {
  cuda::Choice heuristic;
  std::vector<cuda::Choice> candidates;
};
TuneField tune_field(const ProductSpec& product, int64_t batch, int num_sms);

// Estimates the seconds that the search takes on a device as fast as an H200.
double expected_seconds(const ProductSpec& product, int64_t batch, const TuneField& field, bool every);

struct TuneRow {
  const ProductSpec* product = nullptr;
  int64_t batch = 0;
  bool between = false;  // compared with the sizes around it, not searched
  SearchResult result;
};

// Checks with a temporary file that the directory, or the part of its path that exists, is writable; does not
// create the directory. The error is kInvalidArgument, which names --output-dir.
Result<void> check_output_dir(const std::filesystem::path& dir);

// Returns each value once, at its first position.
std::vector<int64_t> distinct(const std::vector<int64_t>& values);

// Holds the contents of a directory for a card.
struct StoredChoices {
  std::string device;   // in the form of file names: "NVIDIA_H200"
  int num_kept = 0;     // products at batch sizes that a run keeps
  std::string refusal;  // why a run on it would end before measuring anything; empty: it would not
};
std::vector<StoredChoices> stored_choices(const std::vector<ProductSpec>& products,
                                          const std::vector<int64_t>& batches,
                                          const std::filesystem::path& dir, int num_sms);

struct TuneOptions {
  std::filesystem::path output_dir;
  double seconds = 280.0;        // for the whole run
  bool again = false;            // measure again what the files already have
  bool every = false;            // measure every choice (SearchOptions::every)
  bool compare_between = false;  // batch sizes outside of kSearchedBatches are only compared
  std::function<double()> now;
  std::function<bool()> interrupted;
  std::function<void(size_t done, size_t total, const std::string& what)> progress;
};

struct TuneReport {
  std::vector<TuneRow> rows;  // in the order of measuring
  int num_kept = 0;           // already in the files
  int num_single = 0;         // only one choice, so nothing to measure
  int num_agreeing = 0;       // between batch sizes with equal choices, so nothing to compare
  int num_incomplete = 0;     // rows whose time ended before the search did
  int num_left = 0;           // not measured, or only in part: interrupted, or the time was over
  std::vector<std::filesystem::path> files;  // those that were written
};

// Holds the comparison of the heuristic with the choices found. Only rows that were searched to the end
// count, because for sizes that were only compared the fastest choice is unknown.
struct HeuristicVerdict {
  int num_rows = 0;
  int num_close = 0;               // within kCloseToTuned
  const TuneRow* worst = nullptr;  // null without rows
  double worst_excess = 0.0;       // its time over the choice's, less 1
};
inline constexpr double kCloseToTuned = 0.05;
HeuristicVerdict judge_heuristic(const std::vector<TuneRow>& rows);

// Tunes the products. The errors are a file that cannot be read or written (the directory is created and
// tested before anything is measured), an entry of another tool or another model in the place of ours
// (detected before anything is measured), and a measurement that failed. Files written before an error are
// kept.
Result<TuneReport> tune(const std::vector<ProductSpec>& products, const std::vector<int64_t>& batches,
                        MeasurerSource& source, const TuneOptions& options);

}  // namespace hadal
