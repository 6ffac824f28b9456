#include "cli/batch_report.h"

#include <algorithm>

#include "engine/speculation/weight_traffic.h"

namespace hadal::cli {
namespace {

double median_time(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

// Libraries reach these matrix rates on an H200; an operation's share of the ceiling refers to them.
constexpr double kBf16FlopS = 0.8e15;
constexpr double kFp8FlopS = 1.5e15;

// Describes the data that ranks exchange in a decode step. A lone rank computes without exchanging any.
std::string exchanges_text(const ModelOptions& options, const StepExchanges& exchanges) {
  const std::string who = options.gpus.is_lone()
                              ? fmt::format("rank {} of {} alone", options.gpus.lone_rank, options.split.tp)
                              : fmt::format("{} ranks", options.split.tp);
  return fmt::format(
      "{}: a decode step has {} exchanges, each rank receives {:.3f} MB; by the model they take {:.4f} "
      "ms{}\n",
      who, exchanges.count, static_cast<double>(exchanges.bytes_received) * 1e-6, exchanges.modelled_s * 1e3,
      options.gpus.is_lone() ? ", which the times above do not contain" : "");
}

double value_or_zero(const nlohmann::ordered_json& row, const char* key) {
  return row[key].is_null() ? 0.0 : row[key].get<double>();
}

}  // namespace

nlohmann::ordered_json report_row(const BatchReport& report, const Backend& backend) {
  const BatchShape& shape = report.shape;
  const BatchTimes& times = report.times;
  const bool on_gpu = backend.device() == DeviceType::kCuda;
  const auto batch = static_cast<double>(shape.batch_size);
  nlohmann::ordered_json row = {
      {"run_name", report.run_name},
      {"batch_size", shape.batch_size},
      {"input_len", shape.input_len},
      {"output_len", shape.output_len},
      {"prefill_latency", nullptr},
      {"prefill_throughput", nullptr},
      {"median_decode_latency", nullptr},
      {"median_decode_throughput", nullptr},
      {"total_latency", nullptr},
      {"overall_throughput", nullptr},
      {"bandwidth_gb_s", nullptr},
      {"bandwidth_ceiling_gb_s", report.ceiling / 1e9},
      {"share_of_ceiling", nullptr},
      {"distinct_experts", nullptr},
      {"prefill_gpu_latency", nullptr},
      {"median_decode_gpu_latency", nullptr},
      {"distinct_experts_expected", expected_distinct_experts(backend.config(), shape.batch_size)},
  };
  if (shape.long_rows > 0) {
    row["long_rows"] = shape.long_rows;
    row["long_input_len"] = shape.long_input_len;
  }
  if (shape.fill_cache) {
    row["fill_cache"] = true;
  } else {
    const auto num_input = static_cast<double>(shape.num_input());
    double total_s = times.prefill_s;
    for (const double step : times.decode_s) total_s += step;
    row["prefill_latency"] = times.prefill_s;
    row["prefill_throughput"] = num_input / times.prefill_s;
    row["total_latency"] = total_s;
    row["overall_throughput"] = (num_input + batch * static_cast<double>(shape.output_len)) / total_s;
    if (on_gpu) row["prefill_gpu_latency"] = times.prefill_gpu_s;
  }
  if (times.exchanges.count > 0) {
    row["decode_exchanges"] = times.exchanges.count;
    row["decode_exchanged_bytes"] = times.exchanges.bytes_received;
    row["decode_exchange_latency_modelled"] = times.exchanges.modelled_s;
  }
  if (times.decode_s.empty()) return row;
  const double latency = median_time(times.decode_s);
  // On a GPU this is the time of the kernels alone; the latency includes the host.
  const double busy = on_gpu ? median_time(times.decode_gpu_s) : latency;
  row["median_decode_latency"] = latency;
  row["median_decode_throughput"] = batch * times.accept_length / latency;
  row["distinct_experts"] = times.distinct_experts;
  if (shape.width == 0) {
    row["bandwidth_gb_s"] = times.decode_bytes / busy / 1e9;
    row["share_of_ceiling"] = times.decode_bytes / busy / report.ceiling;
  } else {  // the bytes that the NextN layer reads are not counted
    row["width"] = shape.width;
    row["accept_length"] = times.accept_length;
    if (report.simulated) row["acceptance"] = "simulated";
  }
  if (on_gpu) row["median_decode_gpu_latency"] = busy;
  return row;
}

std::string table_header(bool on_gpu) {
  return fmt::format("{:>6}{:>8}{:>8}{:>12}{:>12}{:>13}{:>12}{:>10}{:>9}{:>9}{:>10}{:>10}{}\n", "batch",
                     "input", "output", "prefill s", "prefill t/s", "decode ms", "decode t/s", "GB/s",
                     "ceiling", "share", "experts", "expected",
                     on_gpu ? fmt::format("{:>13}{:>10}", "prefill gpu", "gpu ms") : "");
}

std::string row_text(const nlohmann::ordered_json& row, const BatchReport& report,
                     const ModelOptions& options) {
  const BatchShape& shape = report.shape;
  std::string gpu;
  if (options.device == DeviceType::kCuda) {
    gpu = fmt::format("{:>13.4f}{:>10.4f}", value_or_zero(row, "prefill_gpu_latency"),
                      1e3 * value_or_zero(row, "median_decode_gpu_latency"));
  }
  std::string out = fmt::format(
      "{:>6}{:>8}{:>8}{:>12.4f}{:>12.1f}{:>13.3f}{:>12.1f}{:>10.1f}{:>9.1f}{:>8.1f}%{:>10.2f}{:>10.2f}{}\n",
      row["batch_size"].get<int64_t>(), row["input_len"].get<int64_t>(), row["output_len"].get<int64_t>(),
      value_or_zero(row, "prefill_latency"), value_or_zero(row, "prefill_throughput"),
      1e3 * value_or_zero(row, "median_decode_latency"), value_or_zero(row, "median_decode_throughput"),
      value_or_zero(row, "bandwidth_gb_s"), value_or_zero(row, "bandwidth_ceiling_gb_s"),
      100.0 * value_or_zero(row, "share_of_ceiling"), value_or_zero(row, "distinct_experts"),
      value_or_zero(row, "distinct_experts_expected"), gpu);
  if (shape.long_rows > 0) {
    out += fmt::format("of these sequences, {} {} an input of {} tokens instead\n", shape.long_rows,
                       shape.long_rows == 1 ? "has" : "have", shape.long_input_len);
  }
  if (shape.fill_cache) out += "the cache was filled at random, and prompts were not computed\n";
  if (shape.width > 0) {
    out += fmt::format("up to {} rows of a sequence in a step; accept length{}: {:.2f}\n", shape.width,
                       report.simulated ? " (simulated)" : "", report.times.accept_length);
  }
  if (report.times.exchanges.count > 0) out += exchanges_text(options, report.times.exchanges);
  return out;
}

std::string op_table(const char* what, const std::vector<OpTiming>& ops, double bytes_s, bool fp8) {
  const double flop_s = fp8 ? kFp8FlopS : kBf16FlopS;
  std::string out = fmt::format("{:<24}{:>7}{:>12}{:>8}{:>10}{:>10}{:>9}\n", what, "calls", "us", "%", "GB/s",
                                "TFLOP/s", "ceiling");
  double total = 0.0;
  for (const OpTiming& op : ops) total += op.seconds;
  for (const OpTiming& op : ops) {
    const double floor = std::max(op.bytes / bytes_s, op.flops / flop_s);
    out += fmt::format("{:<24}{:>7}{:>12.2f}{:>7.1f}%{:>10.1f}{:>10.2f}{:>8.1f}%\n", op.name, op.calls,
                       1e6 * op.seconds, 100.0 * op.seconds / total, op.bytes / op.seconds / 1e9,
                       op.flops / op.seconds / 1e12, 100.0 * floor / op.seconds);
  }
  return out + fmt::format("{:<24}{:>7}{:>12.2f}\n", "all", "", 1e6 * total);
}

}  // namespace hadal::cli
