// `hadal bench one-batch`: one static batch through the model, without the engine. Every row runs a warm-up
// of the same shape first. The prompt of all sequences is one step, then each step decodes a token of every
// sequence, greedily.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <random>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "cli/bandwidth_probe.h"
#include "cli/commands.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/static_batch.h"
#include "cli/terminal.h"
#include "cli/weight_traffic.h"

namespace hadal::cli {
namespace {

using Clock = std::chrono::steady_clock;
constexpr size_t kProbeBytes = size_t{4} << 30;

struct Shape {
  int64_t batch_size = 0;
  int64_t input_len = 0;
  int64_t output_len = 0;
};

struct Measured {
  double prefill_s = 0.0;
  std::vector<double> decode_s;   // of each step
  double decode_bytes = 0.0;      // mean of the steps
  double distinct_experts = 0.0;  // mean of MoE layers and decode steps
};

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

std::vector<int32_t> argmax_rows(std::span<const float> logits, int64_t vocab_size) {
  std::vector<int32_t> ids;
  for (auto row = logits.begin(); row != logits.end(); row += vocab_size) {
    ids.push_back(static_cast<int32_t>(std::max_element(row, row + vocab_size) - row));
  }
  return ids;
}

double mean_of(const std::vector<int32_t>& values) {
  double sum = 0.0;
  for (const int32_t value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

Measured run_batch(Session& session, const KvLayout& layout, const Shape& shape,
                   std::span<const int32_t> prompt, int64_t output_len, ModelRunner& runner,
                   const InterruptGuard& guard) {
  Measured measured;
  Model& model = session.model();
  StaticBatch batch(shape.batch_size, shape.input_len + shape.output_len);
  const int64_t vocab_size = model.config().vocab_size;
  const auto begin = Clock::now();
  std::vector<int32_t> ids = argmax_rows(runner.forward(batch.prefill(prompt, 0, false)), vocab_size);
  measured.prefill_s = seconds_since(begin);
  for (int64_t step = 0; step + 1 < output_len && !guard.interrupted(); ++step) {
    const int64_t position = shape.input_len + step;
    const auto step_begin = Clock::now();
    ids = argmax_rows(runner.forward(batch.decode(ids, position)), vocab_size);
    measured.decode_s.push_back(seconds_since(step_begin));
    const std::vector<int32_t>& distinct = model.expert_stats().distinct_experts;
    measured.distinct_experts += mean_of(distinct);
    measured.decode_bytes +=
        static_cast<double>(weight_bytes_read(model.weights(), distinct) +
                            kv_bytes_read(model.config(), layout, shape.batch_size, position + 1));
  }
  if (!measured.decode_s.empty()) {
    measured.distinct_experts /= static_cast<double>(measured.decode_s.size());
    measured.decode_bytes /= static_cast<double>(measured.decode_s.size());
  }
  return measured;
}

// SGLang's keys, then what the memory did. Decode values are null when there was no decode step.
nlohmann::ordered_json make_row(const std::string& run_name, const Shape& shape, const Measured& measured,
                                double ceiling, const ModelConfig& config) {
  double total_s = measured.prefill_s;
  for (const double step : measured.decode_s) total_s += step;
  const auto batch = static_cast<double>(shape.batch_size);
  nlohmann::ordered_json row = {
      {"run_name", run_name},
      {"batch_size", shape.batch_size},
      {"input_len", shape.input_len},
      {"output_len", shape.output_len},
      {"prefill_latency", measured.prefill_s},
      {"prefill_throughput", batch * static_cast<double>(shape.input_len) / measured.prefill_s},
      {"median_decode_latency", nullptr},
      {"median_decode_throughput", nullptr},
      {"total_latency", total_s},
      {"overall_throughput", batch * static_cast<double>(shape.input_len + shape.output_len) / total_s},
      {"bandwidth_gb_s", nullptr},
      {"bandwidth_ceiling_gb_s", ceiling / 1e9},
      {"share_of_ceiling", nullptr},
      {"distinct_experts", nullptr},
      {"distinct_experts_expected", expected_distinct_experts(config, shape.batch_size)},
  };
  if (!measured.decode_s.empty()) {
    const double latency = median(measured.decode_s);
    row["median_decode_latency"] = latency;
    row["median_decode_throughput"] = batch / latency;
    row["bandwidth_gb_s"] = measured.decode_bytes / latency / 1e9;
    row["share_of_ceiling"] = measured.decode_bytes / latency / ceiling;
    row["distinct_experts"] = measured.distinct_experts;
  }
  return row;
}

double value_or_zero(const nlohmann::ordered_json& row, const char* key) {
  return row[key].is_null() ? 0.0 : row[key].get<double>();
}

void print_row(const nlohmann::ordered_json& row) {
  write_stdout(fmt::format(
      "{:>6}{:>8}{:>8}{:>12.4f}{:>12.1f}{:>13.3f}{:>12.1f}{:>10.1f}{:>9.1f}{:>8.1f}%{:>10.2f}{:>10.2f}\n",
      row["batch_size"].get<int64_t>(), row["input_len"].get<int64_t>(), row["output_len"].get<int64_t>(),
      value_or_zero(row, "prefill_latency"), value_or_zero(row, "prefill_throughput"),
      1e3 * value_or_zero(row, "median_decode_latency"), value_or_zero(row, "median_decode_throughput"),
      value_or_zero(row, "bandwidth_gb_s"), value_or_zero(row, "bandwidth_ceiling_gb_s"),
      100.0 * value_or_zero(row, "share_of_ceiling"), value_or_zero(row, "distinct_experts"),
      value_or_zero(row, "distinct_experts_expected")));
}

Result<std::vector<Shape>> read_shapes(const ParsedFlags& flags, const ModelConfig& config) {
  HADAL_ASSIGN_OR_RETURN(const auto batch_sizes, parse_counts(flags, "batch-size", {1}));
  HADAL_ASSIGN_OR_RETURN(const auto input_lens, parse_counts(flags, "input-len", {1024}));
  HADAL_ASSIGN_OR_RETURN(const auto output_lens, parse_counts(flags, "output-len", {16}));
  std::vector<Shape> shapes;
  for (const int64_t batch_size : batch_sizes) {
    for (const int64_t input_len : input_lens) {
      for (const int64_t output_len : output_lens) {
        if (input_len + output_len > config.max_position_embeddings) {
          return invalid_argument(
              "--input-len {} and --output-len {} exceed {}, the model's max_position_embeddings", input_len,
              output_len, config.max_position_embeddings);
        }
        shapes.push_back({batch_size, input_len, output_len});
      }
    }
  }
  return shapes;
}

}  // namespace

Result<int> run_bench_one_batch(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kNone));
  const ModelConfig& config = session->config();
  HADAL_ASSIGN_OR_RETURN(const std::vector<Shape> shapes, read_shapes(flags, config));
  std::ofstream results;
  const auto result_filename = flags.text("result-filename");
  if (result_filename) {
    results.open(*result_filename, std::ios::app);
    if (!results) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *result_filename);
  }
  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session->kv_layout());
  log_info("measuring read bandwidth bytes={}", kProbeBytes);
  BandwidthProbe probe(session->pool(), kProbeBytes);
  log_info("read bandwidth gb_s={:.2f} threads={}", probe.measure() / 1e9, session->pool().num_threads());

  write_stdout(fmt::format("{:>6}{:>8}{:>8}{:>12}{:>12}{:>13}{:>12}{:>10}{:>9}{:>9}{:>10}{:>10}\n", "batch",
                           "input", "output", "prefill s", "prefill t/s", "decode ms", "decode t/s", "GB/s",
                           "ceiling", "share", "experts", "expected"));
  const InterruptGuard guard;
  for (const Shape& shape : shapes) {
    std::mt19937_64 random(session->options().random_seed);
    std::vector<int32_t> prompt(static_cast<size_t>(shape.batch_size * shape.input_len));
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % static_cast<uint64_t>(config.vocab_size));
    const int64_t num_pages = StaticBatch(shape.batch_size, shape.input_len + shape.output_len).num_pages();
    ModelRunner runner(session->model(), session->pool(), num_pages, layout, session->options().kernels);
    constexpr int64_t kWarmUpOutput = 3;
    run_batch(*session, layout, shape, prompt, std::min(shape.output_len, kWarmUpOutput), runner, guard);
    const Measured measured = run_batch(*session, layout, shape, prompt, shape.output_len, runner, guard);
    if (guard.interrupted()) return kExitInterrupted;
    const nlohmann::ordered_json row =
        make_row(flags.text_or("run-name", "default"), shape, measured, probe.measure(), config);
    print_row(row);
    if (result_filename) {
      results << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
      if (!results) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *result_filename);
    }
  }
  return kExitOk;
}

}  // namespace hadal::cli
