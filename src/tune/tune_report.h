// Writes the output of `hadal tune` and of the tool that makes the shipped files. The functions are pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tune/tuner.h"

namespace hadal {

inline constexpr int kAssumedMultiprocessors = 132;  // assumed by a dry run: those of an H200
// Describes what would be measured on a device with this number of multiprocessors, and how long the
// measurements would take.
std::string dry_run_text(const std::vector<ProductSpec>& products, const std::vector<int64_t>& batches,
                         const TuneOptions& options, int num_sms = kAssumedMultiprocessors);

// Returns one line per row, the comparison of the heuristic with the choices found, and the files that were
// written.
std::string report_text(const TuneReport& report);

// Returns the comparison alone: "heuristic within 5 % of tuned: 20 of 21 rows, worst 38.2 % (experts down m
// 16: skinny …, tuned tiled …)"; empty without rows.
std::string verdict_text(const TuneReport& report);

}  // namespace hadal
