// Limits what the masks of one answer's grammar may cost, in seconds of processor time.
// text/grammar/grammar.h gives up a mask that takes longer than one may, and engine/loop/mask_workers.h ends
// an answer whose masks together take longer than all may. docs/security.md has the numbers.
#pragma once

namespace hadal {

struct MaskLimits {
  // A mask for a vocabulary of 129,280 tokens takes 0.3 ms for JSON, 2 ms for most expressions, and 20 ms in
  // grammars of 100 kB; so honest requests stay below a mean of 20 ms, and the base allows single slow ones.
  double one_mask_s = 0.5;    // for one mask, and for one token that the grammar accepts
  double base_s = 2.0;        // all masks of an answer: this much,
  double per_token_s = 0.02;  // and this much for each of its masks

  // Returns what the first `num_masks` masks of an answer may take together.
  double all_masks_s(double num_masks) const { return base_s + per_token_s * num_masks; }
};

}  // namespace hadal
