// Ends all requests: for good after a broken invariant, or to begin anew when memory has run out.
#include <cstdlib>
#include <new>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "engine/loop/engine_loop.h"

namespace hadal {

void EngineLoop::die(const char* why) noexcept {
  const bool is_first = !std::exchange(dead_, true);
  try {
    log_error("engine failed: error=\"{}\"", why);
    if (is_first) {
      died_of_ = std::string("the engine has failed: ") + why;
      gate_.close(make_status(StatusCode::kInternal, "{}", died_of_));
    }
  } catch (const std::exception&) {
    write_last_line("engine failed", why);
    gate_.close({});  // there is no memory, so no reason is given
  }
  try {
    if (is_first && options_.on_failure) options_.on_failure(why);
  } catch (const std::exception&) {
    std::_Exit(EXIT_FAILURE);  // nobody else will end the process
  }
  try {
    abort_all(AbortReason::kFault, died_of_);
  } catch (const std::exception&) {
    write_last_line("engine failed", "not all requests could be told");
  }
}

void EngineLoop::begin_anew() noexcept {
  constexpr int kAttempts = 100;
  for (int attempt = 1; attempt <= kAttempts; ++attempt) {
    try {
      return end_everything();
    } catch (const std::bad_alloc&) {
      MemoryReserve::refill();
    } catch (const std::exception& error) {
      die(error.what());
      return deliver_last();
    }
  }
  die("no memory for the state of the engine itself");
  deliver_last();
}

// This may be called again after it has thrown.
void EngineLoop::end_everything() {
  if (dead_) return;
  discard_steps();
  in_flight_.reset();
  buried_.clear();
  scheduler_.reset();
  end_record();
  staging_.clear();
  awaiting_masks_.clear();
  std::erase_if(sequences_, [](const auto& entry) { return entry.second == nullptr; });
  for (const auto& [id, sequence] : sequences_) sequence->awaits_mask = false;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence->finished) finish_aborted(*sequence, AbortReason::kMemory, kNoMemory);
  }
  deliver();
  log_error("engine had no memory: all requests have ended, and the cache is empty");
}

// A record describes one scheduler, whose steps begin at 1, but the steps of the engine go on after a reset.
// So the record ends before the failure, and its file is complete from now on.
void EngineLoop::end_record() {
  if (recorder_ == nullptr) return;
  log_warning(
      "record of plans ended path={} reason=\"the engine had no memory\"; it can be replayed to its end",
      options_.record_plans);
  recorder_.reset();
}

// Waits for the steps that the executor has, and ignores their results.
void EngineLoop::discard_steps() {
  const size_t words = (static_cast<size_t>(vocab_size_) + 31) / 32;
  for (; num_launched_ > 0; forget_oldest()) {
    Launched& oldest = launched_[0];
    if (oldest.num_constrained > 0 && !oldest.has_masks) {
      executor_->set_masks(oldest.step, std::vector<uint32_t>(oldest.num_constrained * words, ~uint32_t{0}));
      oldest.has_masks = true;
    }
    executor_->wait();
  }
}

// Delivers the last chunks of a failed engine.
void EngineLoop::deliver_last() {
  try {
    deliver();
  } catch (const std::exception& error) {
    log_error("final chunks lost: error=\"{}\"", error.what());
  }
}

}  // namespace hadal
