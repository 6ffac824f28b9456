// Limits the processor time, in seconds, that the masks of one answer's grammar may take.
// text/grammar/grammar.h gives up a mask that takes longer than `one_mask_s`, and engine/loop/mask_workers.h
// ends an answer whose masks together take longer than all_masks_s(). docs/security.md has the numbers.
#pragma once

namespace hadal {

struct MaskLimits {
  // A mask for a vocabulary of 129,280 tokens takes 0.3 ms for JSON, 2 ms for most expressions, and 20 ms in
  // grammars of 100 kB. So the mean of an ordinary request stays below 20 ms, and `base_s` allows a few slow
  // masks.
  double one_mask_s = 0.5;    // for one mask, and for one token that the grammar accepts
  double base_s = 2.0;        // for all masks of an answer together,
  double per_token_s = 0.02;  // plus this much for each of them

  // Returns the seconds that the first `num_masks` masks of an answer may take together.
  double all_masks_s(double num_masks) const { return base_s + per_token_s * num_masks; }
};

}  // namespace hadal
