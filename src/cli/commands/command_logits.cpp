// `hadal logits` writes the float32 logits of every position to a safetensors file, and with --nextn those of
// the NextN layer.
#include <algorithm>
#include <filesystem>
#include <system_error>
#include <vector>

#include "base/log.h"
#include "cli/commands/commands.h"
#include "cli/flags/defaults.h"
#include "cli/run.h"
#include "cli/session.h"
#include "cli/static_batch.h"
#include "cli/terminal.h"
#include "model/safetensors_writer.h"

namespace hadal::cli {
Result<int> run_logits(const ParsedFlags& flags, const Environment& environment) {
  const auto output = flags.text("output");
  if (!output) return invalid_argument("--output is missing; must be the safetensors file to write");
  if (flags.has("mode") && flags.has("decode-from")) {
    return invalid_argument("--mode and --decode-from exclude each other");
  }
  std::error_code ignored;
  if (std::filesystem::is_directory(*output, ignored)) {
    return make_status(StatusCode::kResourceExhausted, "cannot write {}: it is a directory", *output);
  }
  HADAL_ASSIGN_OR_RETURN(const auto session, Session::open(flags, environment, TokenizerUse::kNone));
  HADAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, read_input_ids(flags));
  HADAL_RETURN_IF_ERROR(check_ids(flags, ids, session->config(), session->config().max_position_embeddings));
  const auto num_tokens = static_cast<int64_t>(ids.size());
  const int64_t vocab_size = session->config().vocab_size;
  // The first `num_prompt` tokens use the form of attention for prompts, and the others use the absorbed
  // form.
  int64_t num_prompt = flags.text_or("mode", "prefill") == "decode" ? 0 : num_tokens;
  num_prompt = flags.integer("decode-from").value_or(num_prompt);
  if (num_prompt > num_tokens) {
    return invalid_argument("--decode-from {}: the prompt has {} tokens; allowed: 0 to {}", num_prompt,
                            num_tokens, num_tokens);
  }
  const int64_t chunk = flags.integer("chunk").value_or(kDefaultPrefillChunk);  // limits the logits in memory

  // The NextN layer's row t reads token t + 1 and predicts token t + 2.
  const int64_t num_nextn = session->options().load_nextn ? num_tokens - 1 : 0;

  const auto create_output = [&] {
    std::vector<SafetensorsWriter::Entry> tensors = {
        {.name = "logits", .dtype = DType::kF32, .shape = {num_tokens, vocab_size}}};
    if (session->options().load_nextn)
      tensors.push_back({.name = "nextn_logits", .dtype = DType::kF32, .shape = {num_nextn, vocab_size}});
    return SafetensorsWriter::create(*output, tensors);
  };
  if (const auto probe = create_output(); !probe.ok())
    return probe.status();  // before minutes of loading the model
  HADAL_RETURN_IF_ERROR(session->load_model());
  HADAL_ASSIGN_OR_RETURN(const KvLayout layout, session->kv_layout());
  StaticBatch batch(1, num_tokens);
  HADAL_ASSIGN_OR_RETURN(const auto runner, session->backend().make_runner(
                                                batch.num_pages(), std::max<int64_t>(chunk, 1), layout));
  ModelRunner* const nextn = session->options().load_nextn ? runner.get() : nullptr;
  if (nextn != nullptr && !nextn->has_nextn())
    return data_loss("--nextn: {} has no tensors of a NextN layer", session->model_dir().string());
  std::vector<float> hidden;

  const InterruptGuard guard;
  const int64_t row_bytes = vocab_size * dtype_bytes(DType::kF32);
  HADAL_ASSIGN_OR_RETURN(SafetensorsWriter writer, create_output());
  for (int64_t done = 0; done < num_tokens;) {
    const int64_t count = done < num_prompt ? std::min(chunk, num_prompt - done) : 1;
    const auto stage = [&](int64_t first, int64_t rows) -> const ForwardBatch& {
      const std::span<const int32_t> step(ids.data() + first, rows);
      return done < num_prompt ? batch.prefill(step, done, true) : batch.decode(step, done);
    };
    if (nextn == nullptr) {
      HADAL_RETURN_IF_ERROR(
          writer.write(0, done * row_bytes, std::as_bytes(runner->forward(stage(done, count)))));
    } else {
      const ForwardRows rows = nextn->forward_with_hidden(stage(done, count));
      HADAL_RETURN_IF_ERROR(writer.write(0, done * row_bytes, std::as_bytes(rows.logits)));
      if (const int64_t following = std::min(count, num_nextn - done); following > 0) {
        hidden.assign(rows.hidden.begin(), rows.hidden.begin() + following * session->config().hidden_size);
        const ForwardRows drafts = nextn->forward_nextn(stage(done + 1, following), hidden);
        HADAL_RETURN_IF_ERROR(writer.write(1, done * row_bytes, std::as_bytes(drafts.logits)));
      }
    }
    done += count;
    if (guard.interrupted()) return make_status(StatusCode::kCancelled, "interrupted; nothing was written");
  }
  HADAL_RETURN_IF_ERROR(writer.finish());
  log_info("logits written path={} tokens={} vocab={}", *output, num_tokens, vocab_size);
  return kExitOk;
}

}  // namespace hadal::cli
