// Records every call to a scheduler and every plan it made as JSON lines, and replays them: the same calls to
// a fresh scheduler must give the same plans. One line per call:
//
//   {"call":"options","num_pages":…,…}                       first
//   {"call":"add","id":…,"max_new_tokens":…,"max_cached_tokens":…,"priority":…,"client":…,"prompt":[…]}
//                                                            also "salt":"<32 hexadecimal digits>" and
//                                                            "scores_prompt":true, if it has them
//   {"call":"plan","plan":{…}}                               the whole BatchPlan, even if empty; also
//                                                            "max_cost":…, if the cost was limited, and
//                                                            "width":…, if it is not 1
//   {"call":"complete","step":…,"outcomes":[[id,token,finished,further tokens…],…]}
//   {"call":"fail","step":…}   {"call":"abort","id":…}   {"call":"flush_cache"}
//   {"call":"hold","id":…}   {"call":"release","id":…}   {"call":"defer","id":…}
//
// The recorder is used by the thread that calls the scheduler.
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
  // Creates or empties the file at `path`. The error is kDataLoss with the system's message.
  static Result<std::unique_ptr<PlanRecorder>> open(const std::string& path);
  ~PlanRecorder();
  PlanRecorder(const PlanRecorder&) = delete;
  PlanRecorder& operator=(const PlanRecorder&) = delete;

  void start(const SchedulerOptions& options);
  void add(const ScheduledRequest& request);
  void abort(RequestId id);
  void hold(const char* call, RequestId id);  // "hold", "release" or "defer"
  void plan(const BatchPlan& plan, int64_t max_cost, int64_t width);
  void complete(int64_t step, std::span<const ItemOutcome> outcomes);
  void fail(int64_t step);
  void flush_cache();

  // Becomes false after a failed write (disk full): the failure is logged once, and nothing more is written.
  bool is_recording() const { return file_ != nullptr; }

 private:
  PlanRecorder(std::FILE* file, std::string path);
  void write(std::string line);

  std::FILE* file_ = nullptr;
  std::string path_;
};

// Returns the "plan" value of a record's line, which is the form in which plans are compared.
std::string plan_to_json(const BatchPlan& plan);

struct PlanReplay {
  int64_t num_calls = 0;  // calls carried out, including the options
  int64_t num_plans = 0;
  // Empty if all plans equal the recorded ones. Otherwise it shows the first plan that differs: its line in
  // the record, the recorded plan and the replayed one.
  std::string difference;
};

// Feeds the record to a fresh scheduler, up to the first plan that differs. The errors, which name the line,
// are kInvalidArgument for malformed records (bad JSON, unknown calls, values that the scheduler does not
// allow) and kDataLoss for a record that ends within a line.
Result<PlanReplay> replay_plans(std::istream& record);

}  // namespace hadal
