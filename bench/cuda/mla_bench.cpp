// Measures MLA decode on one H200: every row of FlashMLA's table and of the goals (mla_goals.h), FP8 and
// float16 caches, several query tokens and ragged batches. A row is the time of one call inside a CUDA graph,
// including splits and their merge. Pages, queries and page tables are rotated so that a graph touches more
// than twice the L2, and records are random. The plan, made once per step, has its own column.
//   cuda_mla_bench [table] [bf16|f16|e4m3|e4m3/128|e5m2] [8|16|32|64|128] [--row BATCH,Q,KEYS,HEADS]…
//   [--unsettled] [--most-keys N] [--json FILE] [--peer]
// Without `table` it measures a few rows of 16 and 128 heads. `us` is the time of a layer after the first one
// of a step, whose plan, lengths and older records are settled (mla.h). `first` is the time without settled
// inputs, and with --unsettled `us` is measured without them, too. Plans receive the longest length of their
// batch, or the number of --most-keys, as in an engine that has only the limit of sequence lengths.
//
// Before each measurement the card rests, so that it is cool in every row (cool_timer.h). Then a graph of 12
// or more calls is replayed seven times, and the median of the last five counts; SM MHz is the
// multiprocessors' clock during that time. FlashMLA's stored figures were measured in the same way, on
// another day and card. With --peer, FlashMLA is measured in this run (mla_flash_mla.py). For each row of its
// table `peer? BATCH Q KEYS HEADS` is written to standard output and microseconds are read from standard
// input, before our own measurement in one row and after it in the next. Ratios and goals then use these
// figures.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "base/check.h"
#include "bench/cuda/arguments.h"
#include "bench/cuda/mla_goals.h"
#include "bench/cuda/mla_measure.h"

namespace hadal::bench {
namespace {

// These are the best rates measured on one H200: reads of memory, and a library's matrix products.
constexpr double kReadTerabytes = 4.39;
constexpr double kBf16Teraflops = 805.0;
constexpr double kFp8Teraflops = 1529.0;

struct Choice {
  bool table = false;
  bool settled = true;
  int64_t most_keys = 0;  // the longest length that the plan receives; 0: the true longest length
  std::string format;     // empty: all formats
  int heads = 0;          // 0: all
  std::vector<MlaShape> rows;
  std::ofstream json;
  bool peer = false;  // FlashMLA's time is requested
};

class Bench {
 public:
  explicit Bench(Choice choice) : choice_(std::move(choice)) {}

  int run() {
    fmt::print(
        "MLA decode; us: {}; first: nothing settled; ceiling: {} TB/s, {:.0f} or (FP8) {:.0f} TFLOP/s\n",
        choice_.settled ? "a layer after the first (settled inputs)" : "nothing settled", kReadTerabytes,
        kBf16Teraflops, kFp8Teraflops);
    fmt::print(
        "{:8} {:>5} {:>2} {:>6} {:>4} {:>8} {:>8} {:>5} {:>7} {:>8} {:>6} {:>5}  {}\n", "format", "batch",
        "q", "keys", "head", "us", "first", "TB/s", "TFLOP/s", "ceiling", "plan", "MHz",
        choice_.peer ? "FlashMLA us stored, in this run, ratio; verdict" : "FlashMLA us, ratio; verdict");
    for (const Format& format : kFormats) {
      if (!choice_.format.empty() && choice_.format != format.name) continue;
      Pool pool(format.layout);
      for (const MlaShape& shape : rows_of(format)) uniform(format, pool, shape);
      if (choice_.table) {
        for (const int heads : {16, 128}) ragged(format, pool, heads);
      }
    }
    summary();
    return 0;
  }

 private:
  std::vector<MlaShape> rows_of(const Format& format) const {
    if (!choice_.rows.empty()) return choice_.rows;
    std::vector<MlaShape> rows;
    const auto add = [&](int q_len, const std::vector<int>& heads, const std::vector<int>& batches,
                         const std::vector<int>& lengths) {
      for (const int h : heads) {
        for (const int keys : lengths) {
          for (const int batch : batches) {
            const MlaShape shape{batch, q_len, keys, h};
            if (choice_.heads != 0 && choice_.heads != h) continue;
            if (std::find(rows.begin(), rows.end(), shape) == rows.end()) rows.push_back(shape);
          }
        }
      }
    };
    const bool is_bf16 = format.layout.format == KvFormat::kBF16;
    const bool is_e4m3 = format.layout.format == KvFormat::kFp8E4M3;
    if (!choice_.table) {
      const bool main = is_bf16 || (is_e4m3 && format.layout.scales == KvScales::kPerToken);
      if (main) add(1, {16, 128}, {1, 4, 32, 64, 128}, {1024, 4096});
      if (!main) add(1, {16, 128}, {1, 128}, {4096});
      return rows;
    }
    if (is_bf16) {
      for (const FlashMlaTime& peer : kFlashMla) {
        add(peer.shape.q_len, {peer.shape.heads}, {peer.shape.batch}, {peer.shape.keys});
      }
      add(1, {8, 32, 64}, {1, 8, 32, 128}, {4096});
      add(1, {8, 32}, {1}, {1024, 16384});
      add(3, {16}, {32, 128}, {4096});
      add(4, {16}, {1, 8, 32, 128}, {4096});
      add(4, {16}, {8}, {65536});
      add(4, {128}, {1, 32}, {4096});
      add(8, {16, 128}, {1, 32}, {4096});
    } else if (is_e4m3 && format.layout.scales == KvScales::kPerToken) {
      add(1, {8, 16, 32, 64, 128}, {1, 8, 32, 128}, {4096});
      add(1, {16, 128}, {1, 128}, {1024, 16384});
      add(1, {16, 128}, {1}, {65536});
      add(2, {16, 64, 128}, {1, 32, 128}, {4096});
      add(4, {16, 128}, {1, 32}, {4096});
      add(8, {16}, {1, 32}, {4096});
    } else {
      add(1, {16, 64, 128}, {1, 8, 32, 128}, {4096});
      add(1, {16, 128}, {1}, {1024, 16384});
      add(2, {16, 128}, {1, 128}, {4096});
    }
    // Rows with little work come first, because a card lowers its clock under heavy rows and for some time
    // after them.
    const auto work = [](const MlaShape& s) {
      return int64_t{s.batch} * s.keys * std::max(90, s.heads * s.q_len);
    };
    std::stable_sort(rows.begin(), rows.end(),
                     [&](const MlaShape& a, const MlaShape& b) { return work(a) < work(b); });
    return rows;
  }

  // Returns FlashMLA's microseconds in this run; 0 if it has no figure.
  double ask_peer(const Format& format, const MlaShape& shape) const {
    if (!choice_.peer || format.layout.format != KvFormat::kBF16 || flash_mla_us(shape) == 0.0) return 0.0;
    fmt::print("peer? {} {} {} {}\n", shape.batch, shape.q_len, shape.keys, shape.heads);
    std::fflush(stdout);
    std::string line;
    HADAL_CHECK(std::getline(std::cin, line), "the peer's time is missing");
    const double us = std::strtod(line.c_str(), nullptr);
    HADAL_CHECK(us > 0.0, "the peer's time is '{}'; allowed: microseconds", line);
    return us;
  }

  void uniform(const Format& format, Pool& pool, const MlaShape& shape) {
    const bool peer_first = num_rows_++ % 2 == 1;
    double peer_us = peer_first ? ask_peer(format, shape) : 0.0;
    const Times t = measure(pool, shape.q_len, shape.heads,
                            std::vector<int32_t>(static_cast<size_t>(shape.batch), shape.keys),
                            choice_.settled, {}, choice_.most_keys);
    if (format.layout.format == KvFormat::kBF16) bf16_rows_.emplace_back(shape, t.us);
    if (!peer_first) peer_us = ask_peer(format, shape);
    print(format, shape, t, mla_goal(format.layout, shape), "", peer_us);
  }

  // Measures lengths of 64 to 32k with uniform logarithms, and compares them with the same bytes in equal
  // lengths.
  void ragged(const Format& format, Pool& pool, int heads) {
    if (choice_.heads != 0 && choice_.heads != heads) return;
    constexpr int kBatch = 64;
    std::mt19937_64 random(5);
    std::uniform_real_distribution<double> logarithm(std::log(64.0), std::log(32768.0));
    std::vector<int32_t> lengths(kBatch);
    int64_t total = 0;
    for (int32_t& length : lengths) {
      length = static_cast<int32_t>(std::exp(logarithm(random)));
      total += length;
    }
    const MlaShape shape{kBatch, 1, static_cast<int>(total / kBatch), heads};
    const Times even = measure(pool, 1, heads, std::vector<int32_t>(kBatch, shape.keys), choice_.settled, {},
                               choice_.most_keys);
    print(format, shape, even, {}, "");
    const Times uneven = measure(pool, 1, heads, lengths, choice_.settled, {}, choice_.most_keys);
    uniform_us_ = even.us;
    print(format, shape, uneven, {Measure::kTimesUniform, 1.0 / 1.1, 0.0}, " ragged");
  }

  double measured(const Goal& goal, const MlaShape& shape, const Times& t, double flash_us) const {
    switch (goal.measure) {
      case Measure::kNone:
        return 0.0;
      case Measure::kMicroseconds:
        return t.us;
      case Measure::kTerabytes:
        return t.bytes / t.us * 1e-6;
      case Measure::kTeraflops:
        return t.flop / t.us * 1e-6;
      case Measure::kTimesFlashMla:
        return flash_us / t.us;
      case Measure::kTimesUniform:
        return uniform_us_ / t.us;
      case Measure::kTimesBf16:
        for (const auto& [row, us] : bf16_rows_) {
          if (row == shape) return us / t.us;
        }
        return 0.0;
    }
    return 0.0;
  }

  void print(const Format& format, const MlaShape& shape, const Times& t, const Goal& goal, const char* note,
             double peer_us = 0.0) {
    const double terabytes = t.bytes / t.us * 1e-6;
    const double teraflops = t.flop / t.us * 1e-6;
    const bool is_fp8 =
        format.layout.format == KvFormat::kFp8E4M3 || format.layout.format == KvFormat::kFp8E5M2;
    const double ceiling =
        std::max(terabytes / kReadTerabytes, teraflops / (is_fp8 ? kFp8Teraflops : kBf16Teraflops));
    const bool has_peer = format.layout.format == KvFormat::kBF16 && *note == '\0';
    const double stored_us = has_peer ? flash_mla_us(shape) : 0.0;
    const double flash_us = peer_us > 0.0 ? peer_us : stored_us;
    std::string verdict;
    std::string beside;
    const double value = measured(goal, shape, t, flash_us);
    if (goal.measure != Measure::kNone && value > 0.0) {
      verdict = !goal.met(value, goal.reach)                    ? "missed"
                : goal.aim == 0.0 || !goal.met(value, goal.aim) ? "reach"
                                                                : "aim";
      ++num_goals_;
      if (verdict != "missed") ++num_reached_;
      if (verdict == "aim") ++num_aims_;
    }
    const auto number_or = [](double us, const char* none, int digits = 1) {
      return us > 0.0 ? fmt::format("{:.{}f}", us, digits) : none;
    };
    if (choice_.peer) beside = fmt::format("{:>7} ", number_or(stored_us, ""));
    beside += fmt::format("{:>7} ", number_or(flash_us, ""));
    if (flash_us > 0.0) {
      beside += fmt::format("{:5.2f}x ", flash_us / t.us);
      ratios_.push_back(flash_us / t.us);
      if (goal.measure == Measure::kTimesFlashMla) other_ratios_.push_back(flash_us / t.us);
    } else {
      beside += fmt::format("{:7}", "");
    }
    if (!verdict.empty()) {
      beside += fmt::format("{} ({:.3g} of {:.3g}{}{})", verdict, value, goal.reach,
                            goal.aim > 0.0 ? fmt::format(", {:g}", goal.aim) : "", unit(goal.measure));
    }
    fmt::print("{:8} {:5} {:2} {:6} {:4} {:8.1f} {:8.1f} {:5.2f} {:7.0f} {:7.0f}% {:6.1f} {:5.0f}  {}{}\n",
               format.name, shape.batch, shape.q_len, shape.keys, shape.heads, t.us, t.first_us, terabytes,
               teraflops, ceiling * 100.0, t.plan_us, t.mhz, beside, note);
    std::fflush(stdout);
    if (choice_.json.is_open()) {
      choice_.json << fmt::format(
          "{{\"format\":\"{}\",\"batch\":{},\"q_len\":{},\"keys\":{},\"heads\":{},\"ragged\":{},\"settled\":{"
          "},"
          "\"us\":{:.3f},\"first_us\":{:.3f},\"plan_us\":{:.3f},\"tb_s\":{:.3f},\"tflop_s\":{:.1f},"
          "\"ceiling\":{:.4f},\"mhz\":{:.0f},\"flash_mla_us\":{},\"peer_us\":{},\"value\":{:.4f},\"reach\":{:"
          ".4f},\"aim\":{:g},"
          "\"unit\":\"{}\",\"verdict\":\"{}\"}}\n",
          format.name, shape.batch, shape.q_len, shape.keys, shape.heads, *note != '\0', choice_.settled,
          t.us, t.first_us, t.plan_us, terabytes, teraflops, ceiling, t.mhz, number_or(stored_us, "null"),
          number_or(peer_us, "null", 3), value, goal.reach, goal.aim, unit(goal.measure), verdict);
      choice_.json.flush();
    }
  }

  static double geometric_mean(const std::vector<double>& values) {
    double sum = 0.0;
    for (const double value : values) sum += std::log(value);
    return std::exp(sum / static_cast<double>(std::max<size_t>(values.size(), 1)));
  }

  void summary() const {
    if (ratios_.empty() && num_goals_ == 0) return;
    const auto slower = std::count_if(ratios_.begin(), ratios_.end(), [](double r) { return r < 1.0; });
    fmt::print(
        "{} of {} rows slower than FlashMLA; geometric mean of ratios {:.3f}, of the {} rows without a goal "
        "of "
        "their own {:.3f} (reach 1.35, aim 1.6); goals: {} reached of {}, {} at their aim\n",
        slower, ratios_.size(), geometric_mean(ratios_), other_ratios_.size(), geometric_mean(other_ratios_),
        num_reached_, num_goals_, num_aims_);
  }

  Choice choice_;
  std::vector<std::pair<MlaShape, double>> bf16_rows_;
  std::vector<double> ratios_, other_ratios_;
  double uniform_us_ = 0.0;
  int num_rows_ = 0;
  int num_goals_ = 0, num_reached_ = 0, num_aims_ = 0;
};

int usage(const std::string& what) {
  fmt::print(
      stderr,
      "{}\ncuda_mla_bench [table] [bf16|f16|e4m3|e4m3/128|e5m2] [8|16|32|64|128] [--row BATCH,Q,KEYS,HEADS]… "
      "[--unsettled] [--most-keys N] [--json FILE] [--peer]\n",
      what);
  return 2;
}

int run(int argc, char** argv) {
  Choice choice;
  for (int i = 1; i < argc; ++i) {
    const std::string arg = argv[i];
    const auto is_format = [&](const Format& format) { return arg == format.name; };
    if (arg == "table") {
      choice.table = true;
    } else if (arg == "--unsettled") {
      choice.settled = false;
    } else if (arg == "--peer") {
      choice.peer = true;
    } else if (arg == "--most-keys" && i + 1 < argc) {
      choice.most_keys = numbers("--most-keys", argv[++i]).at(0);
    } else if (arg == "--json" && i + 1 < argc) {
      choice.json.open(argv[++i]);
      if (!choice.json) return usage(fmt::format("cannot write {}", argv[i]));
    } else if (arg == "--row" && i + 1 < argc) {
      const std::vector<int64_t> n = numbers("--row", argv[++i]);
      if (n.size() != 4 || *std::min_element(n.begin(), n.end()) < 1)
        return usage("--row needs BATCH,Q,KEYS,HEADS");
      choice.rows.push_back(
          {static_cast<int>(n[0]), static_cast<int>(n[1]), static_cast<int>(n[2]), static_cast<int>(n[3])});
    } else if (std::any_of(std::begin(kFormats), std::end(kFormats), is_format)) {
      choice.format = arg;
    } else if (arg == "8" || arg == "16" || arg == "32" || arg == "64" || arg == "128") {
      choice.heads = std::stoi(arg);
    } else {
      return usage(fmt::format("unknown argument '{}'", arg));
    }
  }
  return Bench(std::move(choice)).run();
}

}  // namespace
}  // namespace hadal::bench

int main(int argc, char** argv) {
  return hadal::bench::guarded(hadal::bench::run, argc, argv);
}
