// What `hadal tune` prints, and the tool that makes the shipped files. Pure functions; any thread.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "engine/tuner.h"

namespace hadal {

inline constexpr int kAssumedMultiprocessors = 132;  // of a dry run: an H200's
// What there would be to measure on a device with so many multiprocessors, and how long it would take.
std::string dry_run_text(const std::vector<ProductSpec>& products, const std::vector<int64_t>& batches,
                         const TuneOptions& options, int num_sms = kAssumedMultiprocessors);

// A line for each row, how the heuristic stands to what was found, what was written.
std::string report_text(const TuneReport& report);

// Of that: "heuristic within 5 % of tuned: 20 of 21 rows, worst 38.2 % (experts down m 16: skinny …, tuned
// tiled …)"; empty without rows.
std::string verdict_text(const TuneReport& report);

}  // namespace hadal
