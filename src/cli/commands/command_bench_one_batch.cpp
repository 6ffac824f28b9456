// `hadal bench one-batch`: runs one static batch on an executor, without the engine. Every row begins with a
// warm-up of the same shape. First come the prompts of all sequences (on the CPU in one step, on a GPU in
// steps of a limited number of tokens), then each step decodes one token of every sequence, greedily. With
// speculation each of these steps verifies as many drafts of every sequence as the flags say.
#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <random>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "base/seconds.h"
#include "cli/bandwidth_probe.h"
#include "cli/commands/commands.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/speculation_options.h"
#include "cli/static_batch.h"
#include "cli/terminal.h"
#include "engine/speculation/weight_traffic.h"
#include "engine/step_executor.h"
#include "kernels/cuda/padding.h"

namespace hadal::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Shape {
  int64_t batch_size = 0;
  int64_t input_len = 0;
  int64_t output_len = 0;  // the prompt's step and output_len - 1 more steps
  int64_t width = 0;       // rows that a step has for a sequence with speculation; 0: without it

  // No sequence gets more tokens than this, which includes the additional step of --profile.
  int64_t most_tokens() const { return input_len + output_len * std::max<int64_t>(width, 1); }
};

struct Measured {
  double prefill_s = 0.0;                         // from the launch to the result
  double prefill_gpu_s = 0.0;                     // time of the kernels, as the executor reports
  std::vector<double> decode_s, decode_gpu_s;     // per step
  double decode_bytes = 0.0;                      // mean over the steps
  double distinct_experts = 0.0;                  // mean over MoE layers and decode steps
  double accept_length = 1.0;                     // mean number of tokens of a sequence in a decode step
  bool graphed = false;                           // the last decode step ran as a CUDA graph
  StepExchanges exchanges;                        // of a decode step
  std::vector<OpTiming> prefill_ops, decode_ops;  // one more step of each kind, with --profile
};

double median(std::vector<double> values) {
  if (values.empty()) return 0.0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

double mean_of(const std::vector<int32_t>& values) {
  double sum = 0.0;
  for (const int32_t value : values) sum += value;
  return values.empty() ? 0.0 : sum / static_cast<double>(values.size());
}

// A step on a GPU has this many prompt tokens.
constexpr int64_t kGpuPrefillTokens = 16384;

// BatchRun runs the steps of one shape on an executor; each sequence has a slot.
class BatchRun {
 public:
  BatchRun(Session& session, const KvLayout& layout, const Shape& shape, StepExecutor& executor)
      : backend_(session.backend()),
        layout_(layout),
        shape_(shape),
        executor_(executor),
        num_caches_(session.options().gpus.is_lone() ? 1 : session.options().split.tp),
        batch_(shape.batch_size, shape.most_tokens()) {}

  Result<Measured> run(std::span<const int32_t> prompt, int64_t output_len, bool profile,
                       const InterruptGuard& guard) {
    Measured measured;
    HADAL_RETURN_IF_ERROR(prefill(prompt, measured, false));
    int64_t step = 0, num_tokens = 0;
    for (; step + 1 < output_len && !guard.interrupted(); ++step) {
      HADAL_ASSIGN_OR_RETURN(const StepOutput output, decode(shape_.input_len + step, false));
      for (const SampledToken& sampled : output.samples) num_tokens += 1 + std::ssize(sampled.further);
      measured.decode_s.push_back(wall_s_);
      measured.decode_gpu_s.push_back(output.run_s);
      measured.graphed = output.graphed;
      measured.exchanges = output.exchanges;
      measured.distinct_experts += mean_of(output.distinct_experts);
      const int64_t kv_len = shape_.input_len + step + 1;
      measured.decode_bytes += static_cast<double>(
          backend_.weight_bytes_read(output.distinct_experts, backend_.config().selects_keys(kv_len)) +
          num_caches_ * kv_bytes_read(backend_.config(), layout_, shape_.batch_size, kv_len));
    }
    if (!measured.decode_s.empty()) {
      measured.accept_length = static_cast<double>(num_tokens) /
                               static_cast<double>(std::ssize(measured.decode_s) * shape_.batch_size);
      measured.distinct_experts /= static_cast<double>(measured.decode_s.size());
      measured.decode_bytes /= static_cast<double>(measured.decode_s.size());
    }
    if (profile && shape_.output_len > 1) {
      HADAL_ASSIGN_OR_RETURN(StepOutput output, decode(shape_.input_len + step, true));
      measured.decode_ops = std::move(output.ops);
    }
    if (profile) {
      Measured again;
      HADAL_RETURN_IF_ERROR(prefill(prompt, again, true));
      measured.prefill_ops = std::move(again.prefill_ops);
    }
    return measured;
  }

 private:
  // With `profile`, only the first step is run, and its operations are timed.
  Result<void> prefill(std::span<const int32_t> prompt, Measured& measured, bool profile) {
    const bool on_gpu = backend_.device() == DeviceType::kCuda;
    const int64_t most = on_gpu ? kGpuPrefillTokens : shape_.batch_size * shape_.input_len;
    const int64_t at_once = std::max<int64_t>(most / shape_.input_len, 1);
    const int64_t chunk = std::min(shape_.input_len, most);
    for (int64_t first = 0; first < shape_.batch_size; first += at_once) {
      const int64_t count = std::min(at_once, shape_.batch_size - first);
      for (int64_t begin = 0; begin < shape_.input_len; begin += chunk) {
        const int64_t length = std::min(chunk, shape_.input_len - begin);
        // A step has a part of one sequence's prompt, or the whole prompts of several sequences.
        const auto ids = prompt.subspan(static_cast<size_t>(first * shape_.input_len + begin),
                                        static_cast<size_t>(count == 1 ? length : count * length));
        StagedStep staged;
        staged.batch = batch_.prefill(ids, begin, false, first, count);
        if (shape_.width > 0) staged.next_ids = tokens_after(ids, count);
        for (int64_t i = 0; i < count; ++i) {
          const auto slot = static_cast<int32_t>(first + i);
          if (begin == 0) staged.slots.push_back(greedy(slot));
          staged.samples.push_back(
              {.slot = slot, .logit_row = static_cast<int32_t>(i), .position = begin + length});
        }
        staged.profile = profile;
        HADAL_ASSIGN_OR_RETURN(StepOutput output, carry_out(std::move(staged)));
        if (profile) {
          measured.prefill_ops = std::move(output.ops);
          return {};
        }
        measured.prefill_s += wall_s_;
        measured.prefill_gpu_s += output.run_s;
      }
    }
    return {};
  }

  // Returns the token after each row of `count` prompts; -1 after the last one of each, which is sampled.
  static std::vector<int32_t> tokens_after(std::span<const int32_t> ids, int64_t count) {
    std::vector<int32_t> next(ids.begin() + 1, ids.end());
    next.push_back(-1);
    const int64_t length = std::ssize(ids) / count;
    for (int64_t last = length - 1; last < std::ssize(next); last += length) next[last] = -1;
    return next;
  }

  Result<StepOutput> decode(int64_t position, bool profile) {
    if (shape_.width > 0) return verify(profile);
    StagedStep staged;
    staged.batch = batch_.decode(std::vector<int32_t>(static_cast<size_t>(shape_.batch_size)), position);
    for (int32_t slot = 0; slot < static_cast<int32_t>(shape_.batch_size); ++slot) {
      staged.feeds.push_back({.row = slot, .slot = slot});
      staged.samples.push_back({.slot = slot, .logit_row = slot, .position = position + 1});
    }
    staged.profile = profile;
    return carry_out(std::move(staged));
  }

  // The step that verifies drafts has no positions, because only the executor tracks the lengths.
  Result<StepOutput> verify(bool profile) {
    StagedStep staged;
    staged.batch = batch_.pages_only();
    for (int32_t slot = 0; slot < static_cast<int32_t>(shape_.batch_size); ++slot) {
      staged.verifies.push_back({.sample = slot,
                                 .seq_idx = slot,
                                 .max_rows = static_cast<int32_t>(shape_.width),
                                 .end_position = shape_.most_tokens(),
                                 .most_keys = shape_.most_tokens()});
      staged.samples.push_back({.slot = slot});
    }
    staged.profile = profile;
    return carry_out(std::move(staged));
  }

  Result<StepOutput> carry_out(StagedStep staged) {
    staged.step = ++last_step_;
    const auto begin = Clock::now();
    executor_.launch(std::move(staged));
    StepOutput output = executor_.wait();
    wall_s_ = seconds_since(begin);
    if (!output.error.empty()) return make_status(StatusCode::kInternal, "{}", output.error);
    for (const SampledToken& sampled : output.samples) {
      if (!sampled.error.empty()) return make_status(StatusCode::kInternal, "{}", sampled.error);
    }
    return output;
  }

  static SlotStart greedy(int32_t slot) {
    SlotStart start;
    start.slot = slot;
    start.sampling.temperature = 0.0F;
    return start;
  }

  Backend& backend_;
  const KvLayout layout_;
  const Shape shape_;
  StepExecutor& executor_;
  const int64_t num_caches_;  // each rank reads its own
  StaticBatch batch_;
  int64_t last_step_ = 0;
  double wall_s_ = 0.0;  // time of the last step
};

// Makes an executor with room for the shape, and with a graph of its decode steps if graphs may be so large.
Result<std::unique_ptr<StepExecutor>> make_executor(const ParsedFlags& flags, Session& session,
                                                    const KvLayout& layout, const Shape& shape) {
  EngineOptions options;
  options.kv_layout = layout;
  options.max_running_requests = shape.batch_size;
  options.context_length = shape.most_tokens();
  options.speculation_width = shape.width;
  options.draft_shape = draft_shape(flags, session.options().device);
  HADAL_ASSIGN_OR_RETURN(options.simulated_acceptance, simulated_acceptance(flags, session.options().device));
  options.chunked_prefill_size = kGpuPrefillTokens;
  options.max_prefill_tokens = std::min(kGpuPrefillTokens, shape.batch_size * shape.input_len);
  options.max_total_tokens = StaticBatch(shape.batch_size, options.context_length).num_pages() * kPageSize;
  HADAL_ASSIGN_OR_RETURN(options.device, resolve_device_options(flags));
  options.device.mem_fraction_static = 1.0;
  options.device.use_graphs = options.device.use_graphs && shape.batch_size <= cuda::kMostGraphTokens;
  options.device.graph_bs = {shape.batch_size};
  HADAL_RETURN_IF_ERROR(session.backend().size_cache(options));
  return session.backend().make_executor(options);
}

// Writes SGLang's keys, followed by figures on memory traffic. Decode values are null if there was no decode
// step.
nlohmann::ordered_json report_row(const std::string& run_name, const Shape& shape, const Measured& measured,
                                  double ceiling, const Backend& backend, bool simulated) {
  const bool on_gpu = backend.device() == DeviceType::kCuda;
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
      {"prefill_gpu_latency", nullptr},
      {"median_decode_gpu_latency", nullptr},
      {"distinct_experts_expected", expected_distinct_experts(backend.config(), shape.batch_size)},
  };
  if (measured.exchanges.count > 0) {
    row["decode_exchanges"] = measured.exchanges.count;
    row["decode_exchanged_bytes"] = measured.exchanges.bytes_received;
    row["decode_exchange_latency_modelled"] = measured.exchanges.modelled_s;
  }
  if (!measured.decode_s.empty()) {
    const double latency = median(measured.decode_s);
    // On a GPU this is the time of the kernels alone; the latency includes the host.
    const double busy = on_gpu ? median(measured.decode_gpu_s) : latency;
    row["median_decode_latency"] = latency;
    row["median_decode_throughput"] = batch * measured.accept_length / latency;
    row["distinct_experts"] = measured.distinct_experts;
    if (shape.width == 0) {
      row["bandwidth_gb_s"] = measured.decode_bytes / busy / 1e9;
      row["share_of_ceiling"] = measured.decode_bytes / busy / ceiling;
    } else {  // the bytes that the NextN layer reads are not counted
      row["width"] = shape.width;
      row["accept_length"] = measured.accept_length;
      if (simulated) row["acceptance"] = "simulated";
    }
    if (on_gpu) row["median_decode_gpu_latency"] = busy;
  }
  if (on_gpu) row["prefill_gpu_latency"] = measured.prefill_gpu_s;
  return row;
}

// Describes the data that ranks exchange in a decode step. A lone rank computes without exchanging any.
std::string exchanges_text(const ModelOptions& options, const Measured& measured) {
  const StepExchanges& exchanges = measured.exchanges;
  const std::string who = options.gpus.is_lone()
                              ? fmt::format("rank {} of {} alone", options.gpus.lone_rank, options.split.tp)
                              : fmt::format("{} ranks", options.split.tp);
  return fmt::format(
      "{}: a decode step has {} exchanges, each rank receives {:.3f} MB; by the model they take {:.4f} "
      "ms{}\n",
      who, exchanges.count, static_cast<double>(exchanges.bytes_received) * 1e-6, exchanges.modelled_s * 1e3,
      options.gpus.is_lone() ? ", which the times above do not contain" : "");
}

std::string speculation_text(const Shape& shape, const Measured& measured, bool simulated) {
  return fmt::format("up to {} rows of a sequence in a step; accept length{}: {:.2f}\n", shape.width,
                     simulated ? " (simulated)" : "", measured.accept_length);
}

double value_or_zero(const nlohmann::ordered_json& row, const char* key) {
  return row[key].is_null() ? 0.0 : row[key].get<double>();
}

std::string table_header(bool on_gpu) {
  return fmt::format("{:>6}{:>8}{:>8}{:>12}{:>12}{:>13}{:>12}{:>10}{:>9}{:>9}{:>10}{:>10}{}\n", "batch",
                     "input", "output", "prefill s", "prefill t/s", "decode ms", "decode t/s", "GB/s",
                     "ceiling", "share", "experts", "expected",
                     on_gpu ? fmt::format("{:>13}{:>10}", "prefill gpu", "gpu ms") : "");
}

void print_row(const nlohmann::ordered_json& row) {
  std::string gpu;
  if (!row["prefill_gpu_latency"].is_null()) {
    gpu = fmt::format("{:>13.4f}{:>10.4f}", value_or_zero(row, "prefill_gpu_latency"),
                      1e3 * value_or_zero(row, "median_decode_gpu_latency"));
  }
  write_stdout(fmt::format(
      "{:>6}{:>8}{:>8}{:>12.4f}{:>12.1f}{:>13.3f}{:>12.1f}{:>10.1f}{:>9.1f}{:>8.1f}%{:>10.2f}{:>10.2f}{}\n",
      row["batch_size"].get<int64_t>(), row["input_len"].get<int64_t>(), row["output_len"].get<int64_t>(),
      value_or_zero(row, "prefill_latency"), value_or_zero(row, "prefill_throughput"),
      1e3 * value_or_zero(row, "median_decode_latency"), value_or_zero(row, "median_decode_throughput"),
      value_or_zero(row, "bandwidth_gb_s"), value_or_zero(row, "bandwidth_ceiling_gb_s"),
      100.0 * value_or_zero(row, "share_of_ceiling"), value_or_zero(row, "distinct_experts"),
      value_or_zero(row, "distinct_experts_expected"), gpu));
}

// Libraries reach these matrix rates on an H200; an operation's share of the ceiling refers to them.
constexpr double kBf16FlopS = 0.8e15;
constexpr double kFp8FlopS = 1.5e15;

// Prints one line per operation. Kernels are launched one by one, each between two events, so that their
// times are a few microseconds longer than in a graph.
std::string op_table(const char* what, const std::vector<OpTiming>& ops, double bytes_s, double flop_s) {
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

Result<std::vector<Shape>> read_shapes(const ParsedFlags& flags, const Session& session) {
  HADAL_ASSIGN_OR_RETURN(const auto batch_sizes, parse_counts(flags, "batch-size", {1}));
  HADAL_ASSIGN_OR_RETURN(const auto input_lens, parse_counts(flags, "input-len", {1024}));
  HADAL_ASSIGN_OR_RETURN(const auto output_lens, parse_counts(flags, "output-len", {16}));
  std::vector<Shape> shapes;
  for (const int64_t batch_size : batch_sizes) {
    for (const int64_t input_len : input_lens) {
      for (const int64_t output_len : output_lens) {
        const Shape shape{batch_size, input_len, output_len,
                          speculation_width(flags, session.options().device)};
        if (shape.most_tokens() > session.config().max_position_embeddings) {
          return invalid_argument(
              "--input-len {} plus --output-len {}{} exceeds {}, the model's max_position_embeddings",
              input_len, output_len, shape.width > 1 ? fmt::format(" times {} rows a step", shape.width) : "",
              session.config().max_position_embeddings);
        }
        shapes.push_back(shape);
      }
    }
  }
  return shapes;
}

}  // namespace

Result<int> run_bench_one_batch(const ParsedFlags& flags, const Environment& environment) {
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kNone));
  const bool on_gpu = session->options().device == DeviceType::kCuda;
  const bool profile = flags.has("profile");
  if (profile && !on_gpu) {
    return invalid_argument(
        "--profile: operations are timed on a GPU alone; for the CPU, use `perf record` with this "
        "binary");
  }
  const ModelConfig& config = session->config();
  HADAL_ASSIGN_OR_RETURN(const std::vector<Shape> shapes, read_shapes(flags, *session));
  std::ofstream results;
  const auto result_filename = flags.text("result-filename");
  if (result_filename) {
    results.open(*result_filename, std::ios::app);
    if (!results) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *result_filename);
  }
  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session->kv_layout());
  std::optional<BandwidthProbe> probe;
  std::optional<double> bandwidth = session->backend().measure_bandwidth();
  if (!bandwidth && on_gpu) {
    return make_status(
        StatusCode::kResourceExhausted,
        "the GPU has less than 512 MiB left beside the weights, too little to measure its bandwidth; "
        "use --quantization fp8, or end other programs on the GPU");
  }
  if (!bandwidth) {
    const size_t bytes = probe_bytes(last_level_cache_bytes());
    log_info("measuring read bandwidth bytes={}", bytes);
    probe.emplace(session->pool(), bytes);
    log_info("read bandwidth gb_s={:.2f} threads={}", probe->measure() / 1e9, session->pool().num_threads());
  }
  const auto ceiling = [&] { return bandwidth ? *bandwidth : probe->measure(); };
  write_stdout(table_header(on_gpu));
  const InterruptGuard guard;
  const bool simulated = flags.has("speculative-simulate-acceptance");
  for (const Shape& shape : shapes) {
    std::mt19937_64 random(session->options().random_seed);
    std::vector<int32_t> prompt(static_cast<size_t>(shape.batch_size * shape.input_len));
    for (int32_t& id : prompt) id = static_cast<int32_t>(random() % static_cast<uint64_t>(config.vocab_size));
    HADAL_ASSIGN_OR_RETURN(const auto executor, make_executor(flags, *session, layout, shape));
    BatchRun runs(*session, layout, shape, *executor);
    HADAL_RETURN_IF_ERROR(runs.run(prompt, std::min<int64_t>(shape.output_len, 3), false, guard));  // warm-up
    HADAL_ASSIGN_OR_RETURN(const Measured measured, runs.run(prompt, shape.output_len, profile, guard));
    if (guard.interrupted()) return kExitInterrupted;
    const nlohmann::ordered_json row = report_row(flags.text_or("run-name", "default"), shape, measured,
                                                  ceiling(), session->backend(), simulated);
    print_row(row);
    if (shape.width > 0) write_stdout(speculation_text(shape, measured, simulated));
    if (measured.exchanges.count > 0) write_stdout(exchanges_text(session->options(), measured));
    const bool fp8 = config.quantization || session->options().quantization != LoadQuantization::kNone;
    for (const auto& [what, ops] : {std::pair("a decode step", &measured.decode_ops),
                                    std::pair("a prefill step", &measured.prefill_ops)}) {
      if (!ops->empty()) write_stdout(op_table(what, *ops, ceiling(), fp8 ? kFp8FlopS : kBf16FlopS));
    }
    if (result_filename) {
      results << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
      if (!results) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *result_filename);
    }
  }
  return kExitOk;
}

}  // namespace hadal::cli
