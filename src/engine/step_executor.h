// Executes staged steps: model forward, sampling and log-probabilities. The engine thread launches steps and
// collects their outputs. The executor keeps per slot what the next step needs (the sampled token, the
// history that penalties use), so that a step can be launched before the previous one has been read.
//
// One thread makes all calls. Their order for steps N, N+1, … is launch(N); set_masks(N), if N has
// constrained samples; then, in any order, wait() for N and launch(N+1); set_masks(N+1) after both. An
// executor may rely on this order.
#pragma once

#include <chrono>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "engine/engine.h"
#include "engine/sampler.h"
#include "kernels/params/draft_tree.h"
#include "model/model.h"
#include "scheduler/batch_plan.h"

namespace hadal {

// SlotStart holds the state of a slot, from the step that starts it until the slot is started again.
struct SlotStart {
  int32_t slot = 0;
  SamplingParams sampling;
  uint64_t seed = 0;
  std::vector<int32_t> eos_token_ids;  // masked before min_new_tokens; empty with ignore_eos
  TokenHistory history{TokenIds()};    // prompt, and tokens generated before a retraction
  LogprobOptions logprobs;
};

// Describes the last row of a sampling item.
struct SampleSpec {
  int32_t slot = 0;
  int32_t logit_row = 0;     // index into the step's logits
  int64_t position = 0;      // absolute position of the token to be chosen
  bool constrained = false;  // waits for its masks (set_masks)
  int32_t num_rows = 1;      // of a VerifyItem, 0 to max_rows: logit_row and those after it
};

// VerifyItem is a decoding request that speculates. The executor keeps the newest token of its slot, guesses
// a tree of drafts after it (kernels/params/draft_tree.h), and adds the rows of its nodes to the batch: at
// most max_rows, whose records are at consecutive positions below end_position. Each row on the accepted path
// passes the ordinary sampler. A draft is accepted if it equals the token that its parent's row sampled and
// its parent was accepted. The executor sets logit_row, position and num_rows of the item's sample. There is
// no row if the request has ended, or failed, in a step that was under way when this one was staged.
struct VerifyItem {
  int32_t sample = 0;        // index into StagedStep::samples
  int32_t seq_idx = 0;       // row of batch.page_table
  int32_t max_rows = 0;      // ≥ 1
  int64_t end_position = 0;  // the last token that the request may generate is never computed
  // No row has more keys than this, because the request has no more pages.
  int64_t most_keys = std::numeric_limits<int64_t>::max();
};

// A step scores at most this many prompt rows, so that the memory of its logits can be planned. With a
// vocabulary of 129,280 tokens these are 0.5 GB.
inline constexpr int64_t kMaxScoredRows = 1024;

// PromptScore is a prompt row whose token's log-probability is wanted.
struct PromptScore {
  int32_t slot = 0;
  int32_t logit_row = 0;
  int32_t token_id = 0;  // the token that this row's logits predict
};

// Sets batch.token_ids[row] to the token that the previous step sampled for `slot`.
struct TokenFeed {
  int32_t row = 0;
  int32_t slot = 0;
};

struct StagedStep {
  int64_t step = 0;
  std::vector<SlotStart> slots;  // processed first
  std::vector<PageCopy> copies;  // processed next, in order
  ForwardBatch batch;
  std::vector<TokenFeed> feeds;
  std::vector<SampleSpec> samples;  // in the order of the plan's sampling items
  std::vector<PromptScore> scores;
  // With speculation: the requests that verify drafts, and the token after each row of `batch`. The token is
  // −1 if the row samples it, or if there is none.
  std::vector<VerifyItem> verifies;
  std::vector<int32_t> next_ids;
  bool profile = false;  // requests StepOutput::ops from executors that can time single ops
};

// OpTiming sums all calls of one op in a profiled step.
struct OpTiming {
  std::string name;
  int64_t calls = 0;
  double seconds = 0.0;
  double bytes = 0.0;  // the least that it must move
  double flops = 0.0;
};

// ChosenToken is a token that a step samples after the first one of its request.
struct ChosenToken {
  int32_t token = -1;
  int32_t row = 0;  // the accepted draft after which it was sampled: a node of the tree, ≥ 1
  std::optional<TokenLogprob> logprob;  // if the slot requests it
};

struct SampledToken {
  int32_t slot = 0;
  int32_t token = -1;
  std::optional<TokenLogprob> logprob;  // if the slot requests it
  std::vector<ChosenToken> further;     // as many as drafts were accepted
  bool verified = false;                // by a VerifyItem
  int32_t num_drafts = 0;               // how many of them were verified
  // If it is not empty, this row failed alone (for example, its logits contain NaN), and `token` is
  // meaningless.
  std::string error;
};

// StepExchanges says what a rank of the step exchanges with the others, and how long that takes by the model
// of comm/collective_choice.h. It is zero with one rank.
struct StepExchanges {
  int64_t count = 0;
  int64_t bytes_received = 0;
  double modelled_s = 0.0;
  StepExchanges& operator+=(const StepExchanges& other) {
    count += other.count;
    bytes_received += other.bytes_received;
    modelled_s += other.modelled_s;
    return *this;
  }
};

struct StepOutput {
  int64_t step = 0;
  std::vector<SampledToken> samples;  // in the order of StagedStep::samples
  std::vector<std::pair<int32_t, TokenLogprob>>
      prompt_scores;  // (slot, …) in the order of StagedStep::scores
  // Seconds from the start of the step's work to its end; on a GPU, of its kernels only.
  double run_s = 0.0;
  // When the work began; only traces use it.
  std::chrono::steady_clock::time_point begin{};
  std::string error;                      // not empty: the whole step failed
  bool fatal = false;                     // set if no later step can succeed
  bool graphed = false;                   // set if it was launched as a CUDA graph
  std::vector<int32_t> distinct_experts;  // experts hit by at least one token, for each MoE layer
  std::vector<OpTiming> ops;              // set with StagedStep::profile
  StepExchanges exchanges;                // of ranks on GPUs
};

// DeviceRates says how much more a step costs on a device when it has more rows.
struct DeviceRates {
  // Multiply-adds that take as long as reading a byte of weights.
  double products_per_byte = 1.0;
};
// A step that verifies no drafts leaves NextN out. The hidden states of up to this many tokens of each
// request are kept until a step verifies drafts again.
inline constexpr int64_t kMaxWaitingRows = 32;

class StepExecutor {
 public:
  virtual ~StepExecutor() = default;

  // Starts a step. At most two may be in flight; they run in the order of their launch. A step that cannot be
  // started reports that in its output.
  virtual void launch(StagedStep step) = 0;

  // Returns the drafts of the step's constrained samples, in their order, once the step has guessed them;
  // none at all without speculation, or if the step has failed. It is called before set_masks.
  virtual std::vector<std::vector<DraftNode>> wait_drafts(int64_t /*step*/) { return {}; }

  // Sets the masks of the step's constrained samples, in their order, each [ceil(vocab / 32)] words (bit t of
  // word t / 32: allowed). Each sample has one mask for its first row, and one for each of its drafts; the
  // mask of a draft is all 0 if the draft's row is not to be sampled. It is called once for every
  // step that has such samples: after its launch and after wait() has returned the previous step, but before
  // the next launch and before its own wait().
  virtual void set_masks(int64_t step, std::vector<uint32_t> masks) = 0;

  // Waits for the oldest step in flight and returns its output. If memory runs out, launch and set_masks
  // throw std::bad_alloc and change nothing; wait reports it as the step's error.
  virtual StepOutput wait() = 0;

  // Fills the whole KV cache with random records (kernels/params/random_record.h), so that a benchmark can
  // measure long contexts without computing them. No step may be in flight. It throws hadal::Error.
  virtual void fill_cache(uint64_t /*seed*/) { throw Error("this executor has no KV cache to fill"); }

  // Tells whether it verifies drafts (StagedStep::verifies).
  virtual bool speculates() const { return false; }
  // Returns what the policy of speculation needs from the device (engine/speculation/speculation_policy.h).
  virtual DeviceRates rates() const { return {}; }

  // Tells whether prompt tokens may be on the absorbed path (WorkKind::kAbsorbedPrefill): a batch then has
  // several decode rows of one sequence.
  virtual bool takes_absorbed_prompts() const { return false; }
};

}  // namespace hadal
