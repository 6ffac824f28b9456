// Writes what `hadal bench one-batch` has measured: a JSON object and a line of a table for each shape, and
// tables of single operations.
#pragma once

#include <string>
#include <vector>

#include <nlohmann/json.hpp>

#include "cli/batch_run.h"

namespace hadal::cli {

struct BatchReport {
  std::string run_name;
  BatchShape shape;
  BatchTimes times;
  double ceiling = 0.0;    // measured bandwidth, in bytes per second
  bool simulated = false;  // acceptance of drafts
};

// Returns SGLang's keys, followed by figures on memory traffic. Decode values are null if there was no decode
// step, and values that contain the time of prompts are null with fill_cache.
nlohmann::ordered_json report_row(const BatchReport& report, const Backend& backend);

std::string table_header(bool on_gpu);
// Returns the line of a row, and what must be said about it: prompts of other lengths, a cache that was
// filled, accepted drafts, exchanges between ranks.
std::string row_text(const nlohmann::ordered_json& row, const BatchReport& report,
                     const ModelOptions& options);

// Returns one line per operation. Kernels are launched one by one, each between two events, so that their
// times are a few microseconds longer than in a graph.
std::string op_table(const char* what, const std::vector<OpTiming>& ops, double bytes_s, bool fp8);

}  // namespace hadal::cli
