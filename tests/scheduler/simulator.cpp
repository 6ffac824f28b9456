#include "tests/scheduler/simulator.h"

#include <algorithm>

#include "base/check.h"

namespace hadal::testing {
namespace {

constexpr uint64_t kGarbage = 0xdeadbeefdeadbeefULL;

uint64_t next_record(uint64_t record, int32_t token) {
  uint64_t hash =
      (record ^ (static_cast<uint64_t>(static_cast<uint32_t>(token)) + 1)) * 0x9e3779b97f4a7c15ULL;
  return hash ^ (hash >> 29);
}

int32_t next_token(uint64_t record) {
  return static_cast<int32_t>((record >> 7) % 50'000);
}

}  // namespace

Simulator::Simulator(const SimulatorOptions& options)
    : options_(options),
      scheduler_(options.scheduler),
      pages_(options.scheduler.num_pages),
      slots_(options.scheduler.max_running_requests) {}

bool Simulator::ends(int32_t token) const {
  return options_.end_token_odds > 0 && token % options_.end_token_odds == 0;
}

ExpectedSequence Simulator::expect(std::vector<int32_t> prompt, int64_t max_new_tokens) const {
  ExpectedSequence result{.tokens = std::move(prompt), .records = {}, .prompt_len = 0};
  result.prompt_len = std::ssize(result.tokens);
  uint64_t record = 0;
  for (size_t i = 0; i < result.tokens.size(); ++i) {
    if (i > 0) result.nextn.push_back(next_record(record, -result.tokens[i]));
    record = next_record(record, result.tokens[i]);
    result.records.push_back(record);
    if (i + 1 < result.tokens.size()) continue;
    if (std::ssize(result.tokens) == result.prompt_len + max_new_tokens) break;
    if (std::ssize(result.tokens) > result.prompt_len && ends(result.tokens.back())) break;
    result.tokens.push_back(next_token(record));
  }
  return result;
}

RequestId Simulator::add(std::vector<int32_t> prompt, int64_t max_new_tokens, int64_t max_cached_tokens,
                         int32_t priority) {
  const RequestId id = ++last_id_;
  const auto prompt_len = std::ssize(prompt);
  expected_[id] = expect(prompt, max_new_tokens);
  max_new_tokens_[id] = max_new_tokens;
  alive_.insert(id);
  if (max_cached_tokens >= 0) next_scored_[id] = max_cached_tokens;
  scheduler_.add({.id = id,
                  .prompt = std::move(prompt),
                  .max_new_tokens = max_new_tokens,
                  .max_cached_tokens = max_cached_tokens < 0 ? prompt_len - 1 : max_cached_tokens,
                  .scores_prompt = max_cached_tokens >= 0,
                  .priority = priority,
                  .client = id % options_.num_clients});
  check();
  return id;
}

void Simulator::abort(RequestId id) {
  HADAL_CHECK_EQ(scheduler_.abort(id), alive_.erase(id) == 1);
  check();
}

void Simulator::check() {
  ++num_operations_;
  if (options_.check_always) scheduler_.check_integrity();
}

int32_t Simulator::compute(Slot& slot, int64_t position, int32_t token, const WorkItem& item,
                           const Step& step) {
  const PageId page = slot.pages.at(position / kCachePageSize);
  const auto [writer, is_new] = written_.emplace(page, item.request_id);
  HADAL_CHECK(writer->second == item.request_id, "page {} is written by requests {} and {}", page,
              writer->second, item.request_id);
  const uint64_t before =
      position == 0
          ? 0
          : pages_[slot.pages[(position - 1) / kCachePageSize]][(position - 1) % kCachePageSize].record;
  Row& row = pages_[page][position % kCachePageSize];
  row = {.record = step.fails ? kGarbage : next_record(before, token), .nextn = kGarbage, .kind = item.kind};
  return next_token(row.record);
}

// A draft is right or wrong by chance. A wrong draft changes the rows after it, which are not accepted then.
void Simulator::verify(Slot& slot, const WorkItem& item, Step& step) {
  const int64_t most = expected_.at(item.request_id).prompt_len + max_new_tokens_.at(item.request_id);
  const int64_t begin = std::ssize(slot.tokens) - 1;
  HADAL_CHECK(begin >= item.begin && (begin == item.begin || options_.overlapped),
              "request {} is at {}, not {}", item.request_id, begin, item.begin);
  ItemOutcome& outcome = step.outcomes.emplace_back();
  outcome.request_id = item.request_id;
  const int64_t end = std::min(begin + item.num_tokens, most - 1);
  num_void_items_ += end <= begin ? 1 : 0;
  int32_t input = slot.tokens.back();
  bool on_path = true;
  for (int64_t p = begin; p < end; ++p) {
    const int32_t sampled = compute(slot, p, input, item, step);
    const bool guessed = random_() % 100 < static_cast<uint64_t>(options_.acceptance);
    input = guessed ? sampled : sampled + 1;
    if (!on_path) continue;
    if (p == begin) {
      outcome.token = sampled;
    } else {
      outcome.further.push_back(sampled);
      ++num_accepted_;
    }
    slot.tokens.push_back(sampled);
    slot.last_sample = sampled;
    outcome.finished = ends(sampled) || p + 2 == most;
    if (outcome.finished) on_path = false;  // the engine uses no token after the end
    on_path = on_path && guessed;
  }
  slot.last_sample_step = step.plan.step;
  slot.computed = std::ssize(slot.tokens) - 1;
  run_nextn(slot, begin, slot.computed, step);
  check_reads(slot, item, slot.computed, step);
}

void Simulator::run_nextn(Slot& slot, int64_t begin, int64_t end, const Step& step) {
  for (int64_t p = begin; p < std::min(end, std::ssize(slot.tokens) - 1); ++p) {
    const auto row = [&](int64_t at) -> Row& {
      return pages_[slot.pages[at / kCachePageSize]][at % kCachePageSize];
    };
    row(p).nextn = step.fails ? kGarbage : next_record(row(p).record, -slot.tokens[p + 1]);
  }
}

// Attention reads every row. A sequence that stopped may be one token beyond its end (overlapped loop).
void Simulator::check_reads(const Slot& slot, const WorkItem& item, int64_t end, const Step& step) const {
  if (doomed_.contains(item.request_id)) return;
  const ExpectedSequence& expected = expected_.at(item.request_id);
  for (int64_t p = 0; p < std::min<int64_t>(end, std::ssize(expected.records)); ++p) {
    const Row& row = pages_[slot.pages[p / kCachePageSize]][p % kCachePageSize];
    HADAL_CHECK(row.record == expected.records[p], "request {} reads a wrong record at {} (page {}, step {})",
                item.request_id, p, slot.pages[p / kCachePageSize], step.plan.step);
    // The tree has one page for all continuations that begin at a page border, so the last record of a page
    // may be another continuation's.
    const bool has_nextn = p + 1 < std::min(std::ssize(slot.tokens), std::ssize(expected.tokens)) &&
                           p % kCachePageSize != kCachePageSize - 1;
    HADAL_CHECK(options_.scheduler.max_width == 0 || !has_nextn || row.nextn == expected.nextn[p],
                "request {} reads a wrong record of NextN at {} (page {}, step {})", item.request_id, p,
                slot.pages[p / kCachePageSize], step.plan.step);
    if (!options_.scheduler.cache_generated_tokens) {
      HADAL_CHECK((row.kind == WorkKind::kPrefill) == (p < expected.prompt_len),
                  "request {}: position {} was computed on the other path", item.request_id, p);
    }
  }
}

void Simulator::carry_out(const WorkItem& item, const RankPlan& rank, Step& step) {
  HADAL_CHECK(item.slot >= 0 && item.slot < std::ssize(slots_), "slot {}", item.slot);
  HADAL_CHECK(alive_.contains(item.request_id), "an item of request {}, which has ended", item.request_id);
  HADAL_CHECK_GE(item.num_tokens, 1);
  const ExpectedSequence& expected = expected_.at(item.request_id);
  const auto known = scheduler_.tokens(item.request_id);
  Slot& slot = slots_[item.slot];
  if (item.starts_slot) {
    for (const Slot& other : slots_) {
      HADAL_CHECK(&other == &slot || other.id != item.request_id, "request {} has two slots",
                  item.request_id);
    }
    slot = {.id = item.request_id, .computed = item.begin};
    for (int64_t p = 0; p < item.begin; ++p) slot.tokens.push_back(known[p]);
  }
  HADAL_CHECK_EQ(slot.id, item.request_id);
  for (int32_t i = 0; i < item.num_new_pages; ++i) {
    slot.pages.push_back(rank.new_pages.at(item.first_new_page + i));
  }
  HADAL_CHECK(
      !item.verifies || (item.samples && item.kind == WorkKind::kDecode && options_.scheduler.max_width > 0),
      "an item of request {} must not verify", item.request_id);
  if (item.verifies) return verify(slot, item, step);

  HADAL_CHECK_EQ(slot.computed, item.begin);
  const int64_t end = item.begin + item.num_tokens;
  HADAL_CHECK_LE(end, std::ssize(slot.pages) * kCachePageSize);
  HADAL_CHECK((item.kind != WorkKind::kDecode) == (item.begin < expected.prompt_len),
              "wrong kind of item for [{}, {})", item.begin, end);
  HADAL_CHECK(item.kind == WorkKind::kDecode || end <= expected.prompt_len,
              "an item must not cross the end of a prompt");
  if (item.input_from_previous) {
    HADAL_CHECK(item.num_tokens == 1 && item.begin == std::ssize(known) &&
                    slot.last_sample_step == step.plan.step - 1,
                "request {} feeds position {} from step {}", item.request_id, item.begin,
                slot.last_sample_step);
  }

  int32_t predicted = -1;
  for (int64_t p = item.begin; p < end; ++p) {
    const int32_t token = item.input_from_previous ? slot.last_sample : known[p];
    predicted = compute(slot, p, token, item, step);
    if (p == std::ssize(slot.tokens)) slot.tokens.push_back(token);
  }
  slot.computed = end;
  if (item.samples) {
    HADAL_CHECK(end >= expected.prompt_len && end < expected.prompt_len + max_new_tokens_.at(item.request_id),
                "request {} samples at {}", item.request_id, end);
    slot.last_sample = predicted;
    slot.last_sample_step = step.plan.step;
    ItemOutcome& outcome = step.outcomes.emplace_back();
    outcome.request_id = item.request_id;
    outcome.token = predicted;
    outcome.finished =
        ends(predicted) || end + 1 == expected.prompt_len + max_new_tokens_.at(item.request_id);
    if (std::ssize(slot.tokens) == end) slot.tokens.push_back(predicted);
  } else if (end < std::ssize(known) && std::ssize(slot.tokens) == end) {
    slot.tokens.push_back(known[end]);  // NextN needs it
  }
  run_nextn(slot, item.begin, end, step);
  HADAL_CHECK_EQ(item.ends_request, max_new_tokens_.at(item.request_id) == 0 && end == expected.prompt_len);
  check_reads(slot, item, end, step);
}

void Simulator::carry_out(Step& step) {
  const RankPlan& rank = step.plan.ranks.at(0);
  written_.clear();
  for (const RequestId id : step.plan.retracted) {
    for (Slot& slot : slots_) {
      if (slot.id == id) slot = {};
    }
  }
  if (step.fails) {
    for (const WorkItem& item : rank.items) doomed_.emplace(item.request_id, step.plan.step);
  }
  for (const PageCopy& copy : rank.copies) {
    HADAL_CHECK(copy.num_rows > 0 && copy.num_rows < kCachePageSize && copy.source != copy.target,
                "copy {} → {}", copy.source, copy.target);
    ++num_copies_;
    for (int32_t row = 0; row < copy.num_rows; ++row) {
      pages_[copy.target][row] =
          step.fails ? Row{kGarbage, kGarbage, WorkKind::kDecode} : pages_[copy.source][row];
    }
  }
  WorkKind kind = WorkKind::kPrefill;
  for (const WorkItem& item : rank.items) {
    HADAL_CHECK(item.kind >= kind, "the items of a step are not in the order of their kinds");
    kind = item.kind;
    carry_out(item, rank, step);
  }
}

void Simulator::check_budget(const BatchPlan& plan) const {
  int64_t num_tokens = 0, prefill = 0, decode = 0;
  std::set<RequestId> prompts;
  for (const WorkItem& item : plan.ranks[0].items) {
    (item.kind == WorkKind::kDecode ? decode : prefill) += item.num_tokens;
    if (item.kind == WorkKind::kDecode && (item.num_tokens == 1 || item.verifies)) continue;
    num_tokens += item.num_tokens;
    prompts.insert(item.request_id);
  }
  HADAL_CHECK_EQ(prefill, plan.num_prefill_tokens);
  HADAL_CHECK_EQ(decode, plan.num_decode_tokens);
  const SchedulerOptions& o = options_.scheduler;
  if (o.chunked_prefill_size > 0) HADAL_CHECK_LE(num_tokens, o.chunked_prefill_size);
  if (o.chunked_prefill_size > 0 || prompts.size() > 1) HADAL_CHECK_LE(num_tokens, o.max_prefill_tokens);
  std::set<RequestId> all;
  for (const WorkItem& item : plan.ranks[0].items) all.insert(item.request_id);
  HADAL_CHECK_LE(std::ssize(all), o.max_running_requests);
}

// A token is scored once, when it is first computed.
void Simulator::check_scores(const BatchPlan& plan) {
  int64_t num_scored = 0;
  for (const WorkItem& item : plan.ranks[0].items) {
    const auto next = next_scored_.find(item.request_id);
    if (next == next_scored_.end()) continue;
    const int64_t end = item.begin + item.num_tokens;
    const int64_t last = std::min(end, expected_.at(item.request_id).prompt_len - 1);
    num_scored += std::max<int64_t>(last - std::max(next->second, item.begin), 0);
    next->second = std::max(next->second, end);
  }
  HADAL_CHECK_LE(num_scored, options_.scheduler.max_scored_tokens);
  num_scored_ += num_scored;
}

// A request that sampled in an earlier step and continues must sample in this step too, unless it lacks
// pages.
void Simulator::check_every_decode_runs(const BatchPlan& plan) const {
  std::set<RequestId> in_plan;
  for (const WorkItem& item : plan.ranks[0].items) in_plan.insert(item.request_id);
  const SchedulerStats stats = scheduler_.stats();
  // Pages may also lack because they are kept for another client's waiting request.
  const SchedulerOptions& o = options_.scheduler;
  const bool keeps = o.max_running_requests >= 8 && options_.num_clients > 1 && stats.num_queued > 0;
  const int64_t kept = keeps ? o.num_pages / 8 : 0;
  for (const Slot& slot : slots_) {
    if (slot.id == 0 || !alive_.contains(slot.id) || !scheduler_.is_running(slot.id)) continue;
    if (in_plan.contains(slot.id) || slot.last_sample_step == 0) continue;
    const int64_t max_length = expected_.at(slot.id).prompt_len + max_new_tokens_.at(slot.id);
    if (slot.computed + 1 >= max_length) continue;  // its last token is in flight
    HADAL_CHECK(stats.num_free_pages + stats.num_cached_pages <= kept || !plan.retracted.empty(),
                "request {} skips step {}", slot.id, plan.step);
  }
}

// Ids are in order of arrival.
void Simulator::check_oldest_continues(const std::vector<RequestId>& were_running,
                                       const BatchPlan& plan) const {
  const std::set<RequestId> retracted(plan.retracted.begin(), plan.retracted.end());
  const bool all = std::all_of(were_running.begin(), were_running.end(),
                               [&retracted](RequestId id) { return retracted.contains(id); });
  HADAL_CHECK(all || !retracted.contains(were_running.front()),
              "request {} is the oldest, and was retracted in step {} although it was not alone",
              were_running.front(), plan.step);
}

bool Simulator::plan(bool fails) {
  HADAL_CHECK_LT(in_flight_.size(), 2U);
  std::vector<RequestId> were_running;
  std::copy_if(alive_.begin(), alive_.end(), std::back_inserter(were_running),
               [this](RequestId id) { return scheduler_.is_running(id); });
  const int64_t most_width = std::max<int64_t>(1, options_.scheduler.max_width);
  const int64_t width =
      most_width == 1 ? 1 : 1 + static_cast<int64_t>(random_() % static_cast<uint64_t>(most_width));
  BatchPlan made = scheduler_.plan(options_.max_cost, width);
  check();
  if (made.empty()) {
    HADAL_CHECK(!in_flight_.empty() || scheduler_.idle(), "nothing is in flight, and nothing is planned");
    return false;
  }
  HADAL_CHECK_EQ(made.step, ++num_steps_);
  check_budget(made);
  check_scores(made);
  check_oldest_continues(were_running, made);
  in_flight_.push_back({.plan = std::move(made), .outcomes = {}, .fails = fails});
  carry_out(in_flight_.back());
  check_every_decode_runs(in_flight_.back().plan);
  last_plan_ = in_flight_.back().plan;
  return true;
}

void Simulator::complete_oldest() {
  const Step step = std::move(in_flight_.front());
  in_flight_.pop_front();
  if (step.fails) {
    std::set<RequestId> expected_ids;
    for (const WorkItem& item : step.plan.ranks[0].items) {
      if (alive_.erase(item.request_id) == 1) expected_ids.insert(item.request_id);
    }
    const std::vector<RequestId> failed = scheduler_.fail(step.plan);
    HADAL_CHECK(
        expected_ids == std::set(failed.begin(), failed.end()) && expected_ids.size() == failed.size(),
        "fail() names {} requests of {}", failed.size(), expected_ids.size());
    check();
    return;
  }
  for (const ItemOutcome& outcome : step.outcomes) {
    if (!alive_.contains(outcome.request_id)) continue;
    num_late_tokens_ += scheduler_.is_running(outcome.request_id) ? 0 : 1;
  }
  scheduler_.complete(step.plan, step.outcomes);
  for (const ItemOutcome& outcome : step.outcomes) {
    if (!alive_.contains(outcome.request_id)) continue;
    std::vector<int32_t>& output = outputs_[outcome.request_id];
    output.push_back(outcome.token);
    output.insert(output.end(), outcome.further.begin(), outcome.further.end());
    if (!outcome.finished) continue;
    alive_.erase(outcome.request_id);
    const ExpectedSequence& expected = expected_.at(outcome.request_id);
    const std::vector<int32_t> generated(expected.tokens.begin() + expected.prompt_len,
                                         expected.tokens.end());
    HADAL_CHECK(outputs_.at(outcome.request_id) == generated, "request {} generated unexpected tokens",
                outcome.request_id);
  }
  for (const WorkItem& item : step.plan.ranks[0].items) {
    if (item.ends_request && alive_.erase(item.request_id) == 1) outputs_[item.request_id];
  }
  check();
}

bool Simulator::round() {
  if (in_flight_.size() == (options_.overlapped ? 2 : 1)) {  // the test planned a step itself
    complete_oldest();
    return true;
  }
  const bool planned = plan();
  if (!options_.overlapped) {
    if (planned) complete_oldest();
    return planned;
  }
  if (in_flight_.size() == 2 || (!planned && !in_flight_.empty())) {
    complete_oldest();
    return true;
  }
  return planned;
}

void Simulator::run_to_the_end(int64_t max_rounds) {
  while (round()) HADAL_CHECK(--max_rounds > 0, "{} requests never end", alive_.size());
  HADAL_CHECK(scheduler_.idle() && alive_.empty(), "{} requests were forgotten", alive_.size());
  scheduler_.check_integrity();
  const SchedulerStats stats = scheduler_.stats();
  HADAL_CHECK_EQ(stats.num_free_pages + stats.num_cached_pages, options_.scheduler.num_pages);
}

}  // namespace hadal::testing
