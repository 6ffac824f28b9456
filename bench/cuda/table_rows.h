// Writes rows of the tables of products and experts, each with its floor, its goal and its peers, to standard
// output and as JSON lines (which bench/gemm_report.py reads).
//
// A row with peers is measured in rounds. Each round measures every contender once, in turn; our kernel is
// the first in one round and the last in the next. Before each measurement the card rests for a time that
// depends on the measurement's length. A contender's figure is the median of its rounds, so that no contender
// has the advantage of more tries or of a cooler card.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <iostream>
#include <iterator>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "bench/cuda/cool_timer.h"
#include "bench/cuda/gemm_goals.h"

namespace hadal::bench {

using Figures = std::vector<std::pair<std::string, double>>;  // names without spaces

// Holds one measured row. `kind` is "fp8", "bf16", "grouped_fp8", "absorb_query_bf16", "moe_v3_fp8", …
struct TableRow {
  std::string kind;
  ProductShape shape;  // absorbed: groups counts heads; experts: n is hidden, k an expert's intermediate size
  CoolTime time;
  double bytes = 0.0;  // the fewest bytes to move: each input read once, each output written once
  double flop = 0.0;
  double teraflops = kBf16Teraflops;  // best measured rate of such products
  Goal goal;
  Figures more;             // other figures of the row
  bool is_library = false;  // the measured kernel is the library's own

  // Returns the microseconds that memory or arithmetic take at their best measured rates, whichever is
  // longer.
  double floor_us() const { return std::max(bytes / kReadTerabytes, flop / teraflops) * 1e-6; }
};

// Measures call(i), which rotates over `sets` inputs: see CoolTimer.
inline CoolTime time_call(CudaStream& stream, CoolTimer& timer, const std::function<void(int)>& call,
                          int sets) {
  call(0);
  CudaEvent begin(true);
  CudaEvent end(true);
  begin.record(stream.handle());
  call(1);
  end.record(stream.handle());
  end.wait();
  const double once_us = static_cast<double>(end.ms_since(begin)) * 1e3;
  return timer.time(stream, call, cool_calls(once_us, sets), once_us);
}

// Describes a contender that the bench itself measures beside a row.
struct Contender {
  std::string name;  // without spaces
  std::function<void(int)> call;
  int sets = 1;
};

// Names cuBLASLt when it is called without torch; goals and the count of slower rows ignore it.
inline constexpr const char* kDirectLibrary = "cublaslt";

class Table {
 public:
  // If json_path is empty, no file is written. If `asks` is true, peers are measured too (see ask()).
  Table(const std::string& json_path, bool asks) : asks_(asks) {
    if (json_path.empty()) return;
    json_.open(json_path);
    HADAL_CHECK(json_.is_open(), "cannot write '{}'", json_path);
  }

  void print_head() const {
    fmt::print(
        "Ceilings: {} TB/s, {:.0f} TFLOP/s bf16, {:.0f} FP8, {:.0f} INT8; of the ceiling: the floor's share "
        "of "
        "us\n",
        kReadTerabytes, kBf16Teraflops, kFp8Teraflops, kInt8Teraops);
    fmt::print("{:<18} {:>3} {:>5} {:>6} {:>6} {:>8} {:>8} {:>8} {:>6} {:>8} {:>5}  {}\n", "kind", "gr", "m",
               "n", "k", "us", "floor", "ceiling", "TB/s", "TFLOP/s", "MHz",
               "peers' us; verdict: measured (reach, aim)");
  }

  // Adds the row that `measure` returns; `measure` calls time() if the row has peers. `question` describes
  // the row to the peers; if it is empty, no peer is measured.
  template <typename MeasureRow>
  void add(const std::string& question, const MeasureRow& measure) {
    question_ = question;
    others_.clear();
    const TableRow row = measure();
    Figures peers;
    for (auto& [name, times] : others_) peers.emplace_back(name, median(times));
    print(row, peers);
    ++num_rows_;
  }

  // Measures call(i), the peers and `beside`. It must be called within add().
  CoolTime time(CudaStream& stream, CoolTimer& timer, const std::function<void(int)>& call, int sets,
                const std::vector<Contender>& beside = {}) {
    std::vector<CoolTime> own;
    for (int round = 0; round < kRounds; ++round) {
      const bool is_first = (num_rows_ + round) % 2 == 0;
      if (is_first) own.push_back(time_call(stream, timer, call, sets));
      for (const Contender& other : beside)
        note(other.name, time_call(stream, timer, other.call, other.sets).us);
      for (const auto& [name, us] : ask(question_)) note(name, us);
      if (!is_first) own.push_back(time_call(stream, timer, call, sets));
    }
    std::sort(own.begin(), own.end(), [](const CoolTime& a, const CoolTime& b) { return a.us < b.us; });
    return own[kRounds / 2];
  }

  // Prints the last line of a run.
  void print_summary() const {
    std::string slower;
    const char* const rivals[] = {"DeepGEMM", "a library's same product"};
    for (int i = 0; i < 2; ++i) {
      if (beside_[i] > 0)
        slower += fmt::format("; {} of {} slower than {}", slower_[i], beside_[i], rivals[i]);
    }
    fmt::print("{} of {} goals, {} at their aim{}\n", num_reached_, num_goals_, num_aims_, slower);
  }

 private:
  static constexpr int kRounds = 3;

  static double median(std::vector<double>& times) {
    std::sort(times.begin(), times.end());
    return times[times.size() / 2];
  }
  void note(const std::string& name, double us) {
    const auto known =
        std::find_if(others_.begin(), others_.end(), [&](const auto& other) { return other.first == name; });
    if (known != others_.end()) {
      known->second.push_back(us);
    } else {
      others_.emplace_back(name, std::vector<double>{us});
    }
  }

  // Writes "peer? QUESTION" to standard output and reads the answer from standard input, which is "name
  // microseconds name …" or an empty line.
  Figures ask(const std::string& question) const {
    if (!asks_ || question.empty()) return {};
    fmt::print("peer? {}\n", question);
    std::fflush(stdout);
    std::string line;
    HADAL_CHECK(static_cast<bool>(std::getline(std::cin, line)), "the peers' answer to '{}' is missing",
                question);
    std::istringstream words(line);
    Figures answer;
    for (std::string name, number; words >> name;) {
      words >> number;
      const double us = std::strtod(number.c_str(), nullptr);
      HADAL_CHECK(us > 0.0, "the peers' answer is '{}'; allowed: names, each with its microseconds", line);
      answer.emplace_back(name, us);
    }
    return answer;
  }

  // Returns DeepGEMM's time, including the transpose that its users need, or a library's time as called by
  // torch. torch's FP8 products do not count, because their coarser scales need less work. Returns 0 if there
  // is no time.
  static double fastest(const Figures& peers, bool deep_gemm) {
    double least = 0.0;
    for (const auto& [name, us] : peers) {
      if (name.starts_with("deepgemm") != deep_gemm || name.ends_with("_bare") || name.ends_with("_dense") ||
          name.starts_with("scaled_mm") || name == kDirectLibrary)
        continue;
      if (least == 0.0 || us < least) least = us;
    }
    return least;
  }

  void print(const TableRow& row, const Figures& peers) {
    const double us = row.time.us;
    const double stored_us = row.kind.find("fp8") == std::string::npos ? 0.0 : deep_gemm_us(row.shape);
    const double same_run_us = fastest(peers, true);
    const double deep_gemm = same_run_us > 0.0 ? same_run_us : stored_us;
    const double rivals[] = {deep_gemm, fastest(peers, false)};
    for (int i = 0; i < 2; ++i) {
      if (rivals[i] <= 0.0 || (i == 1 && row.is_library)) continue;
      ++beside_[i];
      if (rivals[i] < us) ++slower_[i];
    }
    const double value = measured(row, deep_gemm, rivals[1]);
    std::string verdict;
    if (value > 0.0) {
      verdict = !row.goal.met(value, row.goal.reach) ? "missed"
                : row.goal.met(value, row.goal.aim)  ? "aim"
                                                     : "reach";
      ++num_goals_;
      num_reached_ += verdict != "missed" ? 1 : 0;
      num_aims_ += verdict == "aim" ? 1 : 0;
    }
    std::string beside = stored_us > 0.0 ? fmt::format("deepgemm_stored {:.1f} ", stored_us) : "";
    for (const auto& [name, figure] : peers) beside += fmt::format("{} {:.1f} ", name, figure);
    if (!verdict.empty()) {
      beside += fmt::format("{}: {:.3g} ({:g}, {:g}{}) ", verdict, value, row.goal.reach, row.goal.aim,
                            unit(row.goal.measure));
    }
    if (row.is_library) beside += "ours is the library's own kernel ";
    for (const auto& [name, figure] : row.more) beside += fmt::format("{} {:.7g} ", name, figure);
    const ProductShape& s = row.shape;
    fmt::print("{:<18} {:>3} {:>5} {:>6} {:>6} {:>8.2f} {:>8.2f} {:>7.1f}% {:>6.2f} {:>8.1f} {:>5.0f}  {}\n",
               row.kind, s.groups, s.m, s.n, s.k, us, row.floor_us(), 100.0 * row.floor_us() / us,
               row.bytes / us * 1e-6, row.flop / us * 1e-6, row.time.mhz, beside);
    std::fflush(stdout);
    if (!json_.is_open()) return;
    json_ << fmt::format(
        "{{\"kind\":\"{}\",\"groups\":{},\"m\":{},\"n\":{},\"k\":{},\"us\":{:.3f},\"mhz\":{:.0f},\"bytes\":{:"
        ".0f},"
        "\"flop\":{:.0f},\"floor_us\":{:.3f},\"stored_us\":{},\"peers\":{},\"more\":{},"
        "\"library\":{},\"value\":{:.4f},"
        "\"reach\":{:g},\"aim\":{:g},\"unit\":\"{}\",\"verdict\":\"{}\"}}\n",
        row.kind, s.groups, s.m, s.n, s.k, us, row.time.mhz, row.bytes, row.flop, row.floor_us(),
        stored_us > 0.0 ? fmt::format("{:.1f}", stored_us) : "null", json_of(peers), json_of(row.more),
        row.is_library, value, row.goal.reach, row.goal.aim, unit(row.goal.measure), verdict);
    json_.flush();
  }

  // Returns the row's value in the goal's unit, or 0 if there is nothing to compare with.
  static double measured(const TableRow& row, double deep_gemm, double library) {
    switch (row.goal.measure) {
      case Measure::kNone:
        return 0.0;
      case Measure::kMicroseconds:
        return row.time.us;
      case Measure::kTeraflops:
        return row.flop / row.time.us * 1e-6;
      case Measure::kTimesDeepGemm:
        return deep_gemm / row.time.us;
      case Measure::kTimesLibrary:
        return library / row.time.us;
      case Measure::kTimesFloor:
        return row.time.us / row.floor_us();
    }
    return 0.0;
  }

  static std::string json_of(const Figures& figures) {
    std::string text = "{";
    for (const auto& [name, value] : figures)
      text += fmt::format("{}\"{}\":{:.8g}", text.size() > 1 ? "," : "", name, value);
    return text + "}";
  }

  bool asks_;
  std::ofstream json_;
  int num_rows_ = 0;
  std::string question_;  // the question of the row that add() measures
  std::vector<std::pair<std::string, std::vector<double>>>
      others_;  // the times of that row's peers, one per round
  int num_goals_ = 0, num_reached_ = 0, num_aims_ = 0;
  int slower_[2] = {}, beside_[2] = {};  // DeepGEMM, libraries
};

}  // namespace hadal::bench
