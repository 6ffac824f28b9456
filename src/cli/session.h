// Owns the objects of one command, which are built in this order: config, tokenizer, thread pool and model.
// Only the main thread uses it.
#pragma once

#include <filesystem>
#include <memory>
#include <optional>

#include "base/result.h"
#include "base/thread_pool.h"
#include "cli/options.h"
#include "engine/backend.h"
#include "engine/engine.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hadal::cli {

// Turns kInvalidArgument into kDataLoss (exit code 1), because the file is wrong, not the command line.
Status blame_file(Status status);

enum class TokenizerUse { kNone, kIfThere, kRequired };

class Session {
 public:
  // Reads config and tokenizer, but no weights.
  static Result<std::unique_ptr<Session>> open(const ParsedFlags& flags, const Environment& environment,
                                               TokenizerUse tokenizer_use);

  // Loads the weights to the device, shows progress, and sets load_s. It may be called once.
  Result<void> load_model();

  // Makes an engine that uses the loaded model.
  Result<std::unique_ptr<Engine>> make_engine(EngineOptions options);

  Result<DType> compute_dtype() const { return resolve_device_dtype(options_, config_); }
  // Returns the layout that follows from --kv-cache-dtype, --kv-cache-scales, the compute type and the
  // device.
  Result<KvLayout> kv_layout() const;
  // Returns --dsa-seq-len-threshold or, without it and on the CPU, index_topk.
  int64_t seq_len_threshold() const;
  // Appends the directories of measured kernel choices: the one that comes with the program, and the user's.
  void add_kernel_configs(BackendOptions& options) const;
  // Returns --chat-template, else the format of the tokenizer's template, else that of the architecture.
  Result<ChatFormat> chat_format(const ParsedFlags& flags) const;

  const ModelOptions& options() const { return options_; }
  const ModelConfig& config() const { return config_; }
  const GenerationConfig& generation_config() const { return generation_config_; }
  const std::filesystem::path& model_dir() const { return model_dir_; }
  const Tokenizer* tokenizer() const { return tokenizer_.get(); }  // null when there is none
  Backend& backend() { return *backend_; }                         // after load_model
  ThreadPool& pool() { return *pool_; }
  double load_s() const { return load_s_; }  // for the weights alone

 private:
  Session() = default;

  ModelOptions options_;
  std::filesystem::path model_dir_;
  ModelConfig config_;
  GenerationConfig generation_config_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<Backend> backend_;
  DeviceOptions device_options_;
  std::optional<DraftLayer> draft_;  // nullopt: the model's own NextN layer, if any, is used
  double load_s_ = 0.0;
};

// Loads the tokenizer alone, for commands that need no config.json.
Result<std::unique_ptr<Tokenizer>> open_tokenizer(const ParsedFlags& flags, const Environment& environment);

}  // namespace hadal::cli
