// `hadal bench one-batch`: measures static batches (cli/batch_run.h) of all shapes that the flags name. Each
// row begins with a warm-up of the same shape.
#include <algorithm>
#include <fstream>
#include <optional>
#include <random>

#include "base/log.h"
#include "cli/bandwidth_probe.h"
#include "cli/batch_report.h"
#include "cli/batch_run.h"
#include "cli/commands/commands.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/speculation_options.h"
#include "cli/terminal.h"

namespace hadal::cli {
namespace {

// Reads --long-input-len and --long-rows into a shape.
Result<void> read_long_rows(const ParsedFlags& flags, BatchShape& shape) {
  const std::optional<int64_t> length = flags.integer("long-input-len");
  const std::optional<int64_t> rows = flags.integer("long-rows");
  if (!length) {
    if (!rows) return {};
    return invalid_argument("--long-rows {}: needs --long-input-len, the length of their prompts", *rows);
  }
  shape.long_rows = rows.value_or(1);
  shape.long_input_len = *length;
  if (shape.long_rows >= shape.batch_size) {
    return invalid_argument("--long-rows {}: must be less than --batch-size {}, which counts all sequences",
                            shape.long_rows, shape.batch_size);
  }
  if (shape.long_input_len <= shape.input_len) {
    return invalid_argument("--long-input-len {}: must be more than --input-len {}", shape.long_input_len,
                            shape.input_len);
  }
  return {};
}

Result<std::vector<BatchShape>> read_shapes(const ParsedFlags& flags, const Session& session) {
  HADAL_ASSIGN_OR_RETURN(const auto batch_sizes, parse_counts(flags, "batch-size", {1}));
  HADAL_ASSIGN_OR_RETURN(const auto input_lens, parse_counts(flags, "input-len", {1024}));
  HADAL_ASSIGN_OR_RETURN(const auto output_lens, parse_counts(flags, "output-len", {16}));
  std::vector<BatchShape> shapes;
  for (const int64_t batch_size : batch_sizes) {
    for (const int64_t input_len : input_lens) {
      for (const int64_t output_len : output_lens) {
        BatchShape shape{.batch_size = batch_size,
                         .input_len = input_len,
                         .output_len = output_len,
                         .width = speculation_width(flags),
                         .fill_cache = flags.has("fill-cache")};
        HADAL_RETURN_IF_ERROR(read_long_rows(flags, shape));
        if (shape.most_tokens() > session.config().max_position_embeddings) {
          return invalid_argument(
              "--{} {} plus --output-len {}{} exceeds {}, the model's max_position_embeddings",
              shape.long_rows > 0 ? "long-input-len" : "input-len", shape.most_input(), output_len,
              shape.width > 1 ? fmt::format(" times {} rows a step", shape.width) : "",
              session.config().max_position_embeddings);
        }
        if (shape.fill_cache && output_len < 2) {
          return invalid_argument(
              "--output-len {}: must be at least 2 with --fill-cache, which computes no prompts, so that "
              "only "
              "decode steps are measured",
              output_len);
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
  HADAL_ASSIGN_OR_RETURN(const std::vector<BatchShape> shapes, read_shapes(flags, *session));
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
  for (const BatchShape& shape : shapes) {
    std::mt19937_64 random(session->options().random_seed);
    std::vector<int32_t> prompts(static_cast<size_t>(shape.num_input()));
    for (int32_t& id : prompts)
      id = static_cast<int32_t>(random() % static_cast<uint64_t>(config.vocab_size));
    HADAL_ASSIGN_OR_RETURN(const auto executor, make_batch_executor(flags, *session, layout, shape));
    BatchRun runs(*session, layout, shape, *executor);
    HADAL_RETURN_IF_ERROR(
        runs.run(prompts, std::min<int64_t>(shape.output_len, 3), false, guard));  // warm-up
    BatchReport report{.run_name = flags.text_or("run-name", "default"),
                       .shape = shape,
                       .simulated = flags.has("speculative-simulate-acceptance")};
    HADAL_ASSIGN_OR_RETURN(report.times, runs.run(prompts, shape.output_len, profile, guard));
    if (guard.interrupted()) return kExitInterrupted;
    report.ceiling = ceiling();
    const nlohmann::ordered_json row = report_row(report, session->backend());
    write_stdout(row_text(row, report, session->options()));
    const bool fp8 = config.quantization || session->options().quantization != LoadQuantization::kNone;
    for (const auto& [what, ops] : {std::pair("a decode step", &report.times.decode_ops),
                                    std::pair("a prefill step", &report.times.prefill_ops)}) {
      if (!ops->empty()) write_stdout(op_table(what, *ops, report.ceiling, fp8));
    }
    if (result_filename) {
      results << row.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) << std::endl;
      if (!results) return make_status(StatusCode::kResourceExhausted, "cannot write {}", *result_filename);
    }
  }
  return kExitOk;
}

}  // namespace hadal::cli
