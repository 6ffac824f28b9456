#include "engine/cuda/rank_group_executor.h"

#include <algorithm>
#include <new>
#include <utility>

#include "base/check.h"

namespace hadal {
namespace {

// Names the rank, unless the message already begins with one.
std::string with_rank(size_t rank, const std::string& what) {
  return what.starts_with("rank ") ? what : fmt::format("rank {}: {}", rank, what);
}

StepOutput failed(int64_t step, std::string error, bool fatal) {
  StepOutput output;
  output.step = step;
  output.error = std::move(error);
  output.fatal = fatal;
  return output;
}

// Returns how rank `rank` contradicts rank 0; empty if it does not.
std::string contradiction(const StepOutput& first, const StepOutput& other, size_t rank) {
  if (first.samples.size() != other.samples.size()) {
    return fmt::format("rank {} has sampled {} rows, rank 0 {}", rank, other.samples.size(),
                       first.samples.size());
  }
  for (size_t i = 0; i < first.samples.size(); ++i) {
    const SampledToken& expected = first.samples[i];
    const SampledToken& token = other.samples[i];
    if (token.error.empty() != expected.error.empty() || token.token != expected.token) {
      return fmt::format("rank {} has sampled token {} in slot {}, rank 0 token {}: their states differ",
                         rank, token.token, token.slot, expected.token);
    }
    const auto same_token = [](const ChosenToken& a, const ChosenToken& b) { return a.token == b.token; };
    if (token.num_drafts == expected.num_drafts &&
        std::equal(token.further.begin(), token.further.end(), expected.further.begin(),
                   expected.further.end(), same_token))
      continue;
    return fmt::format(
        "rank {} verified {} drafts in slot {} and accepted {}, rank 0 {} and {}, or other tokens: "
        "the ranks' states differ",
        rank, token.num_drafts, token.slot, token.further.size(), expected.num_drafts,
        expected.further.size());
  }
  return "";
}

}  // namespace

StepOutput join_outputs(std::vector<StepOutput> outputs) {
  const auto has_failed = [](const StepOutput& output) { return !output.error.empty(); };
  const auto first_failed = std::find_if(outputs.begin(), outputs.end(), has_failed);
  if (first_failed != outputs.end()) {
    const bool all = std::all_of(outputs.begin(), outputs.end(), has_failed);
    const bool fatal =
        std::any_of(outputs.begin(), outputs.end(), [](const StepOutput& output) { return output.fatal; });
    return failed(first_failed->step,
                  with_rank(static_cast<size_t>(first_failed - outputs.begin()), first_failed->error),
                  fatal || !all);
  }
  double run_s = 0.0;
  for (size_t rank = 0; rank < outputs.size(); ++rank) {
    run_s = std::max(run_s, outputs[rank].run_s);
    std::string why = contradiction(outputs[0], outputs[rank], rank);
    if (!why.empty()) return failed(outputs[0].step, std::move(why), true);
  }
  outputs[0].run_s = run_s;
  return std::move(outputs[0]);
}

RankGroupExecutor::RankGroupExecutor(int num_ranks, std::chrono::milliseconds deadline, MakeRank make_rank)
    : group_(num_ranks, deadline, std::move(make_rank)), exchange_(std::make_shared<Exchange>()) {
  exchange_->steps.resize(num_ranks);
  exchange_->masks.resize(num_ranks);
  exchange_->outputs.resize(num_ranks);
  group_.run([exchange = exchange_](int rank, StepExecutor& executor) {
    if (rank > 0) return;
    exchange->speculates = executor.speculates();
    exchange->rates = executor.rates();
  });
}

template <typename Body>
void RankGroupExecutor::run(Pending& pending, Body body) {
  try {
    group_.run([exchange = exchange_, body = std::move(body)](int rank, StepExecutor& executor) {
      try {
        body(*exchange, rank, executor);
      } catch (const RankFailed&) {
        throw;
      } catch (const std::exception& error) {
        throw Error(with_rank(static_cast<size_t>(rank), error.what()));
      }
    });
  } catch (const std::exception& error) {
    broken_ = error.what();
    pending.error = broken_;
  }
}

void RankGroupExecutor::launch(StagedStep step) {
  HADAL_CHECK_LT(in_flight_.size(), 2U);
  // While broken_ is empty no rank is lost, because a lost rank makes run() store its error there.
  if (broken_.empty()) std::fill(exchange_->steps.begin(), exchange_->steps.end(), step);
  Pending& pending = in_flight_.emplace_back(Pending{.step = step.step, .error = broken_});
  if (!pending.error.empty()) return;
  run(pending, [](Exchange& exchange, int rank, StepExecutor& executor) {
    executor.launch(std::move(exchange.steps[rank]));
  });
}

void RankGroupExecutor::set_masks(int64_t step, std::vector<uint32_t> masks) {
  HADAL_CHECK(!in_flight_.empty() && in_flight_.front().step == step,
              "masks of step {}, which is not the oldest in flight", step);
  Pending& pending = in_flight_.front();
  if (!pending.error.empty() || !broken_.empty()) return;
  std::fill(exchange_->masks.begin(), exchange_->masks.end(), masks);
  run(pending, [step](Exchange& exchange, int rank, StepExecutor& executor) {
    executor.set_masks(step, std::move(exchange.masks[rank]));
  });
}

void RankGroupExecutor::fill_cache(uint64_t seed) {
  HADAL_CHECK(in_flight_.empty(), "the cache is filled while a step is in flight");
  group_.run([seed](int /*rank*/, StepExecutor& executor) { executor.fill_cache(seed); });
}

StepOutput RankGroupExecutor::wait() {
  HADAL_CHECK(!in_flight_.empty(), "no step is in flight");
  Pending pending = std::move(in_flight_.front());
  in_flight_.pop_front();
  // If a later step has failed, this step has failed too, because its ranks will not finish it.
  if (pending.error.empty()) pending.error = broken_;
  if (pending.error.empty()) {
    run(pending, [](Exchange& exchange, int rank, StepExecutor& executor) {
      exchange.outputs[rank] = executor.wait();
    });
  }
  if (!pending.error.empty()) return failed(pending.step, std::move(pending.error), true);
  StepOutput output =
      join_outputs(std::exchange(exchange_->outputs, std::vector<StepOutput>(group_.num_ranks())));
  output.step = pending.step;
  if (output.fatal) broken_ = output.error;
  return output;
}

}  // namespace hadal
