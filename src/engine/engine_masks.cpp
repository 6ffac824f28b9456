// This part of a turn gives a step the masks of its constrained rows. Workers make them while the step runs.
// A row whose mask is late is sampled without one, and that sample is not taken: the request leaves the steps
// until its mask is ready, and then computes its last token again. So no other row waits for it, and its own
// tokens do not depend on how long its masks take.
#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/log.h"
#include "engine/engine_loop.h"

namespace hadal {
namespace {

// These bound the time for which a step waits for masks.
constexpr double kLeastWaitS = 0.001;
constexpr double kMostWaitS = 0.02;

}  // namespace

// Every token before the masks is known by now.
void EngineLoop::set_masks(const StepRecord& record) {
  if (record.constrained.empty()) return;
  enter("masks");
  const auto begin = Clock::now();
  if (options_.mask_wait_share > 0.0) {
    const double wait_s =
        std::clamp(options_.mask_wait_share * pace_.decode_step_s(), kLeastWaitS, kMostWaitS);
    awaited_.clear();
    for (const Sequence* sequence : record.constrained) {
      if (!sequence->finished) awaited_.push_back(sequence->mask.get());
    }
    mask_workers_.wait(
        awaited_, begin + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(wait_s)));
  }
  const size_t words = (static_cast<size_t>(vocab_size_) + 31) / 32;
  std::vector<uint32_t> masks(record.constrained.size() * words);
  for (size_t i = 0; i < record.constrained.size(); ++i) {
    Sequence& sequence = *record.constrained[i];
    const std::span<uint32_t> mask = std::span(masks).subspan(i * words, words);
    bool is_read = false;
    if (!sequence.finished) {
      const MaskWorkers::Outcome outcome = mask_workers_.take(*sequence.mask, mask);
      if (!outcome.is_ready) {
        defer_late(sequence, record);
      } else if (!outcome.error.empty()) {
        fail(sequence, outcome.error, outcome.reason);
      } else {
        is_read = true;
        if (outcome.is_slow) await_mask(sequence);  // the next mask, which would be late
      }
    }
    if (!is_read) std::fill(mask.begin(), mask.end(), ~uint32_t{0});
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
