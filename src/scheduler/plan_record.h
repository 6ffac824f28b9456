// A record of everything that was asked of a scheduler and of every plan it made, as JSON lines, and its
// replay: the same calls to a fresh scheduler must give the same plans. One line a call:
//
//   {"call":"options","num_pages":…,…}                       first
//   {"call":"add","id":…,"max_new_tokens":…,"max_cached_tokens":…,"priority":…,"prompt":[…]}
//   {"call":"plan","plan":{…}}                               the whole BatchPlan, empty ones too
//   {"call":"complete","step":…,"outcomes":[[id,token,finished],…]}
//   {"call":"fail","step":…}   {"call":"abort","id":…}   {"call":"flush_cache"}
//
// Recorder: the thread that calls the scheduler.
#pragma once

#include <cstdint>
#include <cstdio>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>

#include "base/result.h"
#include "scheduler/scheduler.h"

namespace hadal {

class PlanRecorder {
 public:
  // Creates or empties the file at `path`. Errors: kInvalidArgument, what the system said.
  static Result<std::unique_ptr<PlanRecorder>> open(const std::string& path);
  ~PlanRecorder();
  PlanRecorder(const PlanRecorder&) = delete;
  PlanRecorder& operator=(const PlanRecorder&) = delete;

  void start(const SchedulerOptions& options);
  void add(const ScheduledRequest& request);
  void abort(RequestId id);
  void plan(const BatchPlan& plan);
  void complete(int64_t step, std::span<const ItemOutcome> outcomes);
  void fail(int64_t step);
  void flush_cache();

  // False after a write has failed (disk full): that was logged once, nothing is written any more.
  bool is_recording() const { return file_ != nullptr; }

 private:
  PlanRecorder(std::FILE* file, std::string path);
  void write(std::string line);

  std::FILE* file_ = nullptr;
  std::string path_;
};

// The "plan" of a record's line, on one line: the form in which plans are compared.
std::string plan_to_json(const BatchPlan& plan);

struct PlanReplay {
  int64_t num_calls = 0;  // carried out, the options included
  int64_t num_plans = 0;
  // Empty: all plans are the recorded ones. Otherwise the first that differs: its line, and both plans.
  std::string difference;
};

// Feeds the record to a fresh scheduler, up to the first plan that differs. Errors, with the line's number:
// kInvalidArgument for what is no record (bad JSON, unknown calls, values that the scheduler does not allow),
// kDataLoss for a record that breaks off within a line.
Result<PlanReplay> replay_plans(std::istream& record);

}  // namespace hadal
