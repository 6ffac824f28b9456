// Turns logits into a token: penalties, masks, temperature, truncation, the draw, and log-probabilities. It
// is a pure function of (logits, history, parameters, seed, position), independent of the batch.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "base/token_ids.h"
#include "engine/engine.h"
#include "engine/sampling_params.h"

namespace hadal {

// TokenHistory holds the tokens of one request that penalties use. The tokens of a prompt are shared by all
// choices of that prompt; those that a choice has generated are its own.
class TokenHistory {
 public:
  // With keep_counts false it keeps only the number of generated tokens, for requests without penalties.
  explicit TokenHistory(TokenIds prompt, bool keep_counts = true);
  void add_generated(int32_t token_id) { add_generated({&token_id, 1}); }
  void add_generated(std::span<const int32_t> token_ids);

  struct Counted {
    int32_t token = 0;
    int32_t count = 0;
    bool in_prompt = false;
  };
  // Returns each token of the prompt once, in ascending order.
  std::span<const int32_t> prompt() const { return prompt_.distinct(); }
  // Returns each generated token once, in the order of their first occurrence.
  std::span<const Counted> generated() const { return generated_; }
  int64_t num_generated() const { return num_generated_; }

 private:
  void count(int32_t token_id);
  uint32_t& place_of(int32_t token_id);
  void grow();

  TokenIds prompt_;  // none if counts are not kept
  std::vector<Counted> generated_;
  // A hash table with open addressing: 1 + the index in generated_, or 0. Its size is a power of two.
  std::vector<uint32_t> places_;
  int64_t num_generated_ = 0;
  bool keep_counts_ = true;
};

// The scratch is reused between calls, so that sampling a 129k vocabulary allocates nothing when warm.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<std::pair<float, int32_t>> candidates;
  std::vector<std::pair<double, int32_t>> scored;
};

// Chooses the next token. `logits` [vocab] is not changed and must not contain NaN. Order of operations:
// repetition, frequency and presence penalties; logit bias; grammar mask (`allowed`, one bit per token,
// empty: all); end tokens masked before min_new_tokens; then greedy (ties to the lowest id) or temperature →
// top-k → top-p → min-p → the largest logit / T + G of what is left, with the noise of (seed, position,
// token) that base/gumbel.h defines, where `position` is that of the chosen token. Top-k keeps exactly k
// (ties to the lower id); top-p keeps the fewest most probable tokens whose renormalised mass reaches p.
int32_t sample_token(std::span<const float> logits, const SamplingParams& params, const TokenHistory& history,
                     std::span<const int32_t> eos_token_ids, std::span<const uint32_t> allowed, uint64_t seed,
                     int64_t position, SamplerScratch& scratch);

// DraftChoice is a draft for the next token.
struct DraftChoice {
  int32_t token = 0;
  float log_share = 0.0F;  // the logarithm of its share among the tokens, ≤ 0
};

// Chooses up to `count` drafts for the next token, best first, as sample_token would choose it. The score of
// a token is its logit / T + G, or, if the token with the largest logit is chosen, its logit. The drafts are
// the tokens of largest score (ties to the lower id) that masks and truncation keep, so the first is what
// sample_token returns. Shares are exp(score) divided by the sum over all tokens that are kept. Tokens whose
// score is more than kNegligibleScore (base/gumbel.h) below the best have no share and are no drafts.
std::vector<DraftChoice> choose_drafts(std::span<const float> logits, const SamplingParams& params,
                                       const TokenHistory& history, std::span<const int32_t> eos_token_ids,
                                       uint64_t seed, int64_t position, int64_t count,
                                       SamplerScratch& scratch);

bool has_nan(std::span<const float> values);

// Returns the log-softmax of unmodified logits at `token_id`, with the `top_num` best alternatives.
TokenLogprob token_logprob(std::span<const float> logits, int32_t token_id, int64_t top_num);

}  // namespace hadal
