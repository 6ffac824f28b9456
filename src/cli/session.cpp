#include "cli/session.h"

#include <algorithm>
#include <chrono>
#include <system_error>
#include <utility>

#include "base/install_paths.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/printable.h"
#include "base/seconds.h"
#include "cli/draft_source.h"
#include "cli/flags/flag_values.h"
#include "cli/model_source.h"
#include "cli/speculation_options.h"
#include "cli/terminal.h"
#include "model/other_models.h"

namespace hadal::cli {
namespace {

bool is_file(const std::filesystem::path& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

// Tells whether this is one of the template files that SGLang and vLLM publish for DeepSeek models with
// tools. Such a file is not needed here, because the built-in formats render tools as the models expect them.
bool is_published_template(std::string_view path) {
  const std::string_view name = path.substr(path.find_last_of('/') + 1);
  return name.starts_with("tool_chat_template_deepseek") && name.ends_with(".jinja");
}

// Adds an id that ends an answer. Such ids come from config.json, generation_config.json and the tokenizer.
void add_eos(ModelConfig& config, int64_t id) {
  if (id < 0 || id >= config.vocab_size) return;
  auto& ids = config.eos_token_ids;
  if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
}

// Refuses a directory without config.json: it is empty, for instance, or a folder of several models.
Result<void> refuse_no_model(const std::filesystem::path& directory) {
  std::error_code ignored;
  if (std::filesystem::exists(directory / "config.json", ignored)) return {};
  return not_found(
      "{} {}; the directory of a model has config.json, tokenizer.json and safetensors files",
      directory.string(),
      std::filesystem::is_empty(directory, ignored) ? "is an empty directory" : "has no config.json");
}

}  // namespace

Status blame_file(Status status) {
  if (status.code == StatusCode::kInvalidArgument) status.code = StatusCode::kDataLoss;
  return status;
}

Result<std::unique_ptr<Tokenizer>> open_tokenizer(const ParsedFlags& flags, const Environment& environment) {
  std::string path = flags.text_or("tokenizer-path", flags.text_or("model-path", ""));
  if (path.empty())
    return invalid_argument("--model-path is missing; must be a directory with tokenizer.json");
  std::filesystem::path dir = path;
  if (!is_file(dir)) {
    HADAL_ASSIGN_OR_RETURN(dir, find_model(path, flags, environment));
  }
  auto tokenizer = Tokenizer::load(dir);
  if (!tokenizer.ok()) return blame_file(tokenizer.status());
  return tokenizer;
}

Result<std::unique_ptr<Session>> Session::open(const ParsedFlags& flags, const Environment& environment,
                                               TokenizerUse tokenizer_use) {
  std::unique_ptr<Session> session(new Session);
  HADAL_ASSIGN_OR_RETURN(session->options_, resolve_model_options(flags));
  HADAL_ASSIGN_OR_RETURN(session->device_options_, resolve_device_options(flags));
  const ModelOptions& options = session->options_;
  HADAL_RETURN_IF_ERROR(refuse_gguf(options.model_path));
  HADAL_ASSIGN_OR_RETURN(session->model_dir_, find_model(options.model_path, flags, environment));

  const std::filesystem::path config_path = session->model_dir_ / "config.json";
  HADAL_RETURN_IF_ERROR(refuse_gguf(session->model_dir_));
  HADAL_RETURN_IF_ERROR(refuse_no_model(session->model_dir_));
  HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(config_path, kMaxConfigBytes));
  if (options.config_overrides.empty())  // overrides may change the kind of model
    HADAL_RETURN_IF_ERROR(refuse_other_model(text, config_path.string()));
  auto config = parse_model_config(text, config_path.string(), options.config_overrides);
  if (!config.ok()) {
    // If config.json is valid without the overrides, the flag is wrong, not the file.
    if (!options.config_overrides.empty() && parse_model_config(text, config_path.string()).ok()) {
      const std::string& message = config.status().message;
      constexpr std::string_view kFlag = "--json-model-override-args";
      return message.starts_with(kFlag) ? invalid_argument("{}", message)
                                        : invalid_argument("{}: {}", kFlag, message);
    }
    return blame_file(config.status());
  }
  session->config_ = std::move(config).value();
  HADAL_RETURN_IF_ERROR(check_context_length(flags, session->config_));
  HADAL_RETURN_IF_ERROR(check_split(session->config_, options.split));
  HADAL_ASSIGN_OR_RETURN(
      session->draft_, find_draft_layer(flags, environment, options, session->model_dir_, session->config_));
  if (!session->draft_) HADAL_RETURN_IF_ERROR(check_has_nextn(options, session->config_));
  HADAL_RETURN_IF_ERROR(check_draft_trees(draft_shape(flags), session->config_));
  const bool has_files = options.load_format == LoadFormat::kAuto;
  HADAL_RETURN_IF_ERROR(apply_quantization_flag(session->config_, options.quantization,
                                                has_files ? session->model_dir_ : std::filesystem::path()));
  HADAL_ASSIGN_OR_RETURN(session->generation_config_, load_generation_config(session->model_dir_));
  for (const int64_t id : session->generation_config_.eos_token_ids) add_eos(session->config_, id);
  HADAL_RETURN_IF_ERROR(session->kv_layout());  // checked before anything is loaded

  const std::filesystem::path tokenizer_dir =
      options.tokenizer_path.empty() ? session->model_dir_ : std::filesystem::path(options.tokenizer_path);
  std::error_code ignored;
  const bool is_there =
      is_file(tokenizer_dir) || std::filesystem::exists(tokenizer_dir / "tokenizer.json", ignored);
  if (tokenizer_use == TokenizerUse::kRequired ||
      (tokenizer_use == TokenizerUse::kIfThere && (is_there || !options.tokenizer_path.empty()))) {
    auto tokenizer = Tokenizer::load(tokenizer_dir);
    if (!tokenizer.ok()) return blame_file(tokenizer.status());
    session->tokenizer_ = std::move(tokenizer).value();
    if (const auto eos = session->tokenizer_->eos_id()) add_eos(session->config_, *eos);
  }
  session->pool_ = std::make_unique<ThreadPool>(options.threads);
  return session;
}

Result<void> Session::load_model() {
  const auto begin = std::chrono::steady_clock::now();
  HADAL_ASSIGN_OR_RETURN(const DType compute_dtype, this->compute_dtype());
  BackendOptions options;
  options.kernels = options_.kernels;
  options.fusion = options_.fusion;
  options.seq_len_threshold = options_.seq_len_threshold;
  options.split = options_.split;
  options.gpus = options_.gpus;
  add_kernel_configs(options);
  WeightLoadOptions& load = options.load;
  load.format = options_.load_format;
  load.quantization = options_.quantization;
  load.compute_dtype = compute_dtype;
  load.seed = options_.random_seed;
  load.load_nextn = options_.load_nextn;
  load.draft = draft_;
  Progress progress("loading weights");
  load.progress = [&](size_t done, size_t total, std::string_view what) {
    progress.update(done, total, what);
  };
  auto backend = load_backend(options_.device, model_dir_, config_, options, *pool_);
  progress.finish();
  if (!backend.ok()) return blame_file(backend.status());
  backend_ = std::move(backend).value();
  load_s_ = seconds_since(begin);
  log_info("model loaded path={} architecture={} device={} threads={} tp_size={} ep_size={} seconds={:.2f}",
           options_.model_path, to_string(config_.architecture), to_string(options_.device),
           pool_->num_threads(), options_.split.tp, options_.split.ep, load_s_);
  if (config_.has_indexer()) {
    log_info("sparse attention index_topk={} index_heads={} seq_len_threshold={}", config_.index_topk,
             config_.index_n_heads, seq_len_threshold());
  }
  return {};
}

int64_t Session::seq_len_threshold() const {
  const bool given = options_.device == DeviceType::kCuda && options_.seq_len_threshold >= 0;
  return given ? options_.seq_len_threshold : config_.index_topk;
}

void Session::add_kernel_configs(BackendOptions& options) const {
  if (const auto shipped = bundled_kernel_configs()) options.kernel_config_dirs.push_back(*shipped);
  if (options_.kernel_config_dir.empty()) return;
  options.kernel_config_dirs.emplace_back(options_.kernel_config_dir);
  options.named_kernel_config_dir = options_.kernel_config_dir;
}

Result<KvLayout> Session::kv_layout() const {
  HADAL_ASSIGN_OR_RETURN(const DType dtype, compute_dtype());
  return resolve_kv_layout(options_, config_, dtype);
}

Result<std::unique_ptr<Engine>> Session::make_engine(EngineOptions options) {
  HADAL_ASSIGN_OR_RETURN(options.kv_layout, kv_layout());
  options.device = device_options_;
  HADAL_ASSIGN_OR_RETURN(auto engine, Engine::create(*backend_, options));
  log_info(
      "engine ready context_length={} max_total_tokens={} kv_cache_dtype={} kv_cache_scales={} "
      "kv_record_bytes={} kv_index_bytes={} max_running_requests={}",
      engine->context_length(), engine->max_total_tokens(), to_string(options.kv_layout.format),
      scales_name(options.kv_layout), options.kv_layout.row_bytes(), options.kv_layout.index_row_bytes(),
      engine->max_running_requests());
  return engine;
}

Result<ChatFormat> Session::chat_format(const ParsedFlags& flags) const {
  const auto name = flags.text("chat-template");
  if (name && !is_template_file(*name)) return parse_chat_format(*name);
  auto format = detect_chat_format(tokenizer_->chat_template(), to_string(config_.architecture));
  if (!format.ok()) return blame_file(format.status());
  if (!name) return format;
  if (is_published_template(*name)) {
    log_info("flag accepted flag=--chat-template value={} note=\"the model's format is built in, as {}\"",
             printable(*name), to_string(*format));
    return format;
  }
  return invalid_argument(
      "--chat-template {}: chat formats are built in and not read from files; leave the flag out to use the "
      "model's own, {}, or name one of v2, v2.5, r1, v3.1, v3.2",
      *name, to_string(*format));
}

}  // namespace hadal::cli
