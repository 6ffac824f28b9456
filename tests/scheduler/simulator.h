// Holds a minimal model and executor, which execute a scheduler's plans and check every one of them.
//
// The "record" of a token is the hash of the whole sequence up to it, computed from the previous record as it
// is stored in the pages, and the next token is a function of the last record. A page that is shared, copied,
// written or freed wrongly therefore shows in the records, which are compared with those of the sequence
// computed alone.
#pragma once

#include <array>
#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "scheduler/scheduler.h"

namespace hadal::testing {

// Returns the expected tokens of request `id`, computed without any scheduler.
struct ExpectedSequence {
  std::vector<int32_t> tokens;    // prompt, then everything generated
  std::vector<uint64_t> records;  // records of tokens
  std::vector<uint64_t> nextn;    // records of all tokens but the last in the NextN layer
  int64_t prompt_len = 0;
};

struct SimulatorOptions {
  SchedulerOptions scheduler;
  bool overlapped = false;
  bool check_always = false;          // check_integrity after every call
  int32_t end_token_odds = 0;         // one in this many tokens ends a sequence; 0: none does
  uint64_t num_clients = 1;           // requests belong to them in turn
  int64_t max_cost = kUnlimitedCost;  // of every plan
  // With SchedulerOptions::max_width, a draft is right with this chance in percent, and every plan draws its
  // width.
  int32_t acceptance = 70;
};

class Simulator {
 public:
  explicit Simulator(const SimulatorOptions& options);

  // If max_cached_tokens is given, the prompt is scored from there on.
  RequestId add(std::vector<int32_t> prompt, int64_t max_new_tokens, int64_t max_cached_tokens = -1,
                int32_t priority = 0);
  void abort(RequestId id);
  // Plans and executes a step. Returns false when there was nothing to do. If `fails`, the step will end in
  // fail(), and writes garbage.
  bool plan(bool fails = false);
  void complete_oldest();
  size_t num_in_flight() const { return in_flight_.size(); }
  // Runs one round of the engine's loop. Returns false when idle.
  bool round();
  void run_to_the_end(int64_t max_rounds = 1'000'000);

  Scheduler& scheduler() { return scheduler_; }
  const BatchPlan& last_plan() const { return last_plan_; }
  // Returns what finished requests generated. The output has been checked against the expectation.
  const std::map<RequestId, std::vector<int32_t>>& outputs() const { return outputs_; }
  const ExpectedSequence& expected(RequestId id) const { return expected_.at(id); }
  int64_t num_operations() const { return num_operations_; }
  int64_t num_steps() const { return num_steps_; }
  int64_t num_copies() const { return num_copies_; }
  int64_t num_late_tokens() const { return num_late_tokens_; }  // tokens that arrived for retracted requests
  int64_t num_accepted() const { return num_accepted_; }        // drafts
  int64_t num_void_items() const { return num_void_items_; }    // no row, because their request has ended
  int64_t num_scored() const { return num_scored_; }            // prompt tokens

 private:
  struct Row {
    uint64_t record = 0;
    uint64_t nextn = 0;
    WorkKind kind = WorkKind::kPrefill;
  };
  struct Slot {
    RequestId id = 0;
    std::vector<PageId> pages;
    int64_t computed = 0;
    std::vector<int32_t> tokens;  // tokens of the items, and those that the executor has sampled
    int32_t last_sample = -1;
    int64_t last_sample_step = 0;
  };
  struct Step {
    BatchPlan plan;
    std::vector<ItemOutcome> outcomes;
    bool fails = false;
  };
  bool ends(int32_t token) const;
  ExpectedSequence expect(std::vector<int32_t> prompt, int64_t max_new_tokens) const;
  void carry_out(Step& step);
  void carry_out(const WorkItem& item, const RankPlan& rank, Step& step);
  // Writes a row of the target at `position` of the slot and returns the token that it predicts.
  int32_t compute(Slot& slot, int64_t position, int32_t token, const WorkItem& item, const Step& step);
  void verify(Slot& slot, const WorkItem& item, Step& step);
  // Writes NextN's rows [begin, end) of the slot.
  void run_nextn(Slot& slot, int64_t begin, int64_t end, const Step& step);
  void check_reads(const Slot& slot, const WorkItem& item, int64_t end, const Step& step) const;
  void check_budget(const BatchPlan& plan) const;
  void check_scores(const BatchPlan& plan);
  void check_every_decode_runs(const BatchPlan& plan) const;
  void check_oldest_continues(const std::vector<RequestId>& were_running, const BatchPlan& plan) const;
  void check();

  SimulatorOptions options_;
  Scheduler scheduler_;
  std::vector<std::array<Row, kCachePageSize>> pages_;
  std::vector<Slot> slots_;
  std::deque<Step> in_flight_;
  std::map<RequestId, ExpectedSequence> expected_;
  std::map<RequestId, int64_t> max_new_tokens_;
  std::map<RequestId, int64_t> next_scored_;  // of requests that score their prompt: the next position
  std::mt19937_64 random_{17};
  std::set<RequestId> alive_;
  std::map<RequestId, int64_t> doomed_;  // they fail with the current step
  std::map<RequestId, std::vector<int32_t>> outputs_;
  std::map<PageId, RequestId> written_;  // in the current step
  BatchPlan last_plan_;
  RequestId last_id_ = 0;
  int64_t num_operations_ = 0;
  int64_t num_steps_ = 0;
  int64_t num_copies_ = 0;
  int64_t num_late_tokens_ = 0;
  int64_t num_accepted_ = 0;
  int64_t num_void_items_ = 0;
  int64_t num_scored_ = 0;
};

}  // namespace hadal::testing
