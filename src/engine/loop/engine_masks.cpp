// Has the functions of a turn that give a step the masks of its constrained rows. Workers make the
// masks while the step runs. A row whose mask is late is sampled without one, and that sample is not used:
// the request takes part in no step until its mask is ready, and then computes its last token again. So no
// other row waits for it, and its own tokens do not depend on how long its masks take. If masks after drafts
// are late, those drafts are not verified, and nothing else changes.
#include <algorithm>
#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/loop/engine_loop.h"

namespace hadal {
namespace {

// These bound the time for which a step waits for masks.
constexpr double kLeastWaitS = 0.001;
constexpr double kMostWaitS = 0.02;

}  // namespace

// Waits for the masks of awaited_ (see MaskWorkers::wait), for up to mask_wait_share of a step. Tests set
// infinity, and then the wait has no limit.
void EngineLoop::wait_for_masks() {
  if (options_.mask_wait_share <= 0.0) return;
  if (std::isinf(options_.mask_wait_share)) return mask_workers_.wait(awaited_, Clock::time_point::max());
  const double wait_s = std::clamp(options_.mask_wait_share * pace_.decode_step_s(), kLeastWaitS, kMostWaitS);
  mask_workers_.wait(awaited_, Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                                  std::chrono::duration<double>(wait_s)));
}

// Every token before the masks is known by now.
void EngineLoop::set_masks(const StepRecord& record) {
  if (record.constrained.empty()) return;
  enter("masks");
  const auto begin = Clock::now();
  awaited_.clear();
  for (const Sequence* sequence : record.constrained) {
    if (!sequence->finished) awaited_.push_back(sequence->mask.get());
  }
  wait_for_masks();
  std::vector<std::vector<DraftNode>> drafts = executor_->wait_drafts(record.plan.step);
  drafts.resize(record.constrained.size());
  std::vector<size_t> first_masks(1);  // of each request; the last entry is their number
  for (const std::vector<DraftNode>& of_request : drafts)
    first_masks.push_back(first_masks.back() + 1 + of_request.size());
  const size_t words = (static_cast<size_t>(vocab_size_) + 31) / 32;
  std::vector<uint32_t> masks(first_masks.back() * words);
  const auto masks_of = [&](size_t i, size_t row, size_t count) {
    return std::span(masks).subspan((first_masks[i] + row) * words, count * words);
  };
  std::vector<size_t> drafting;  // requests whose drafts are followed
  awaited_.clear();
  for (size_t i = 0; i < record.constrained.size(); ++i) {
    Sequence& sequence = *record.constrained[i];
    const std::span<uint32_t> mask = masks_of(i, 0, 1);
    bool is_read = false;
    if (!sequence.finished) {
      const MaskWorkers::Outcome outcome = mask_workers_.take(*sequence.mask, mask);
      if (!outcome.is_ready) {
        defer_late(sequence, record);
      } else if (!outcome.error.empty()) {
        fail(sequence, outcome.error, outcome.reason);
      } else {
        is_read = true;
        if (outcome.is_slow) {
          await_mask(sequence);  // the next mask, which would be late
        } else if (!drafts[i].empty()) {
          mask_workers_.post_drafts(sequence.mask, drafts[i]);
          drafting.push_back(i);
          awaited_.push_back(sequence.mask.get());
        }
      }
    }
    if (!is_read) std::fill(mask.begin(), mask.end(), ~uint32_t{0});
  }
  if (!drafting.empty()) wait_for_masks();
  for (const size_t i : drafting) {
    mask_workers_.take_drafts(record.constrained[i]->mask, masks_of(i, 1, drafts[i].size()));
  }
  executor_->set_masks(record.plan.step, std::move(masks));
  for (int i = 0; i < num_launched_; ++i) {
    if (launched_[i].step == record.plan.step) launched_[i].has_masks = true;
  }
  trace_.span("masks", StepTrace::Track::kEngine, record.plan.step, begin, Clock::now());
}

void EngineLoop::defer_late(Sequence& sequence, const StepRecord& record) {
  HADAL_CHECK(scheduler_.defer(sequence.id), "request {} has no sample to defer", sequence.id);
  sequence.late_step = record.plan.step;
  sequence.restarts_sampling = true;
  await_mask(sequence);
}

// No later plan has work for the request until its next mask is ready.
void EngineLoop::await_mask(Sequence& sequence) {
  scheduler_.hold(sequence.id);
  if (!std::exchange(sequence.awaits_mask, true)) awaiting_masks_.push_back(&sequence);
}

void EngineLoop::release_ready() {
  std::erase_if(awaiting_masks_, [this](Sequence* sequence) {
    if (!mask_workers_.is_ready(*sequence->mask)) return false;
    sequence->awaits_mask = false;
    scheduler_.release(sequence->id);
    return true;
  });
}

}  // namespace hadal
