// Reads a record of plans and replays it. The record comes from outside, so every value is checked against
// what the scheduler assumes before the scheduler is called.
#include <fmt/format.h>

#include <charconv>
#include <deque>
#include <istream>
#include <limits>
#include <string>
#include <unordered_map>

#include <boost/json.hpp>

#include "base/check.h"
#include "scheduler/plan_record.h"

namespace hadal {
namespace {

namespace json = boost::json;

// These are limits for records, because the memory of the replaying process grows with these values.
constexpr int64_t kMaxPages = 1 << 24;
constexpr int64_t kMaxRunning = 1 << 20;
constexpr int64_t kMaxRows = 1 << 20;
constexpr int64_t kMaxWidth = 1 << 10;
constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();

Result<const json::value*> field(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr) return invalid_argument("\"{}\" is missing", name);
  return value;
}

Result<int64_t> to_integer(const json::value& value, std::string_view name, int64_t low, int64_t high) {
  const int64_t* number = value.if_int64();
  if (number == nullptr || *number < low || *number > high) {
    return invalid_argument("\"{}\" is {}; allowed is an integer in [{}, {}]", name,
                            value.is_primitive() ? json::serialize(value) : "not a number", low, high);
  }
  return *number;
}

Result<int64_t> integer_field(const json::object& object, std::string_view name, int64_t low, int64_t high) {
  HADAL_ASSIGN_OR_RETURN(const json::value* value, field(object, name));
  return to_integer(*value, name, low, high);
}

Result<bool> bool_field(const json::object& object, std::string_view name) {
  HADAL_ASSIGN_OR_RETURN(const json::value* value, field(object, name));
  if (!value->is_bool()) return invalid_argument("\"{}\" must be true or false", name);
  return value->get_bool();
}

Result<std::string> text_field(const json::object& object, std::string_view name) {
  HADAL_ASSIGN_OR_RETURN(const json::value* value, field(object, name));
  if (!value->is_string()) return invalid_argument("\"{}\" must be a string", name);
  return std::string(value->get_string());
}

Result<const json::array*> array_field(const json::object& object, std::string_view name) {
  HADAL_ASSIGN_OR_RETURN(const json::value* value, field(object, name));
  if (!value->is_array()) return invalid_argument("\"{}\" must be an array", name);
  return &value->get_array();
}

Result<SchedulerOptions> read_options(const json::object& line) {
  SchedulerOptions o;
  HADAL_ASSIGN_OR_RETURN(o.num_pages, integer_field(line, "num_pages", 1, kMaxPages));
  HADAL_ASSIGN_OR_RETURN(o.max_running_requests, integer_field(line, "max_running_requests", 1, kMaxRunning));
  HADAL_ASSIGN_OR_RETURN(o.chunked_prefill_size, integer_field(line, "chunked_prefill_size", -1, kMaxInt64));
  if (o.chunked_prefill_size == 0)
    return invalid_argument("\"chunked_prefill_size\" is 0; must be 1 or more, or -1");
  HADAL_ASSIGN_OR_RETURN(o.max_prefill_tokens, integer_field(line, "max_prefill_tokens", 1, kMaxInt64));
  HADAL_ASSIGN_OR_RETURN(const std::string policy, text_field(line, "policy"));
  HADAL_ASSIGN_OR_RETURN(o.policy, parse_schedule_policy(policy, "policy"));
  HADAL_ASSIGN_OR_RETURN(o.low_priority_values_first, bool_field(line, "low_priority_values_first"));
  HADAL_ASSIGN_OR_RETURN(const json::value* conservativeness, field(line, "conservativeness"));
  if (!conservativeness->is_number())
    return invalid_argument("\"conservativeness\" must be a number above 0");
  o.conservativeness = conservativeness->to_number<double>();
  if (!(o.conservativeness > 0))
    return invalid_argument("\"conservativeness\" is {}; must be a number above 0", o.conservativeness);
  HADAL_ASSIGN_OR_RETURN(const std::string eviction, text_field(line, "eviction"));
  HADAL_ASSIGN_OR_RETURN(o.eviction, parse_eviction_policy(eviction, "eviction"));
  HADAL_ASSIGN_OR_RETURN(o.enable_radix_cache, bool_field(line, "enable_radix_cache"));
  HADAL_ASSIGN_OR_RETURN(o.cache_generated_tokens, bool_field(line, "cache_generated_tokens"));
  if (line.contains("positions_per_row")) {  // older records have none
    HADAL_ASSIGN_OR_RETURN(o.prompt_costs.positions_per_row,
                           integer_field(line, "positions_per_row", 0, kMaxInt64));
    HADAL_ASSIGN_OR_RETURN(o.prompt_costs.rows_per_score, integer_field(line, "rows_per_score", 0, kMaxRows));
  }
  if (line.contains("absorbed_positions_per_row")) {
    HADAL_ASSIGN_OR_RETURN(o.prompt_costs.rows_per_1024_expanded,
                           integer_field(line, "rows_per_1024_expanded", 0, kMaxRows));
    HADAL_ASSIGN_OR_RETURN(
        o.prompt_costs.absorbed_positions_per_row,
        integer_field(line, "absorbed_positions_per_row", 0, o.cache_generated_tokens ? kMaxInt64 : 0));
  }
  if (line.contains("max_scored_tokens")) {
    HADAL_ASSIGN_OR_RETURN(o.max_scored_tokens, integer_field(line, "max_scored_tokens", 1, kMaxInt64));
  }
  if (line.contains("max_width")) {
    HADAL_ASSIGN_OR_RETURN(o.max_width, integer_field(line, "max_width", 0, kMaxWidth));
  }
  return o;
}

Result<RequestId> read_id(const json::value& value) {
  HADAL_ASSIGN_OR_RETURN(const int64_t id, to_integer(value, "id", 1, kMaxInt64));
  return static_cast<RequestId>(id);
}

Result<CacheSalt> read_salt(const std::string& text) {
  CacheSalt salt;
  const char* const middle = text.data() + 16;
  const char* const end = text.data() + text.size();
  if (text.size() != 32 || std::from_chars(text.data(), middle, salt.high, 16).ptr != middle ||
      std::from_chars(middle, end, salt.low, 16).ptr != end) {
    return invalid_argument("\"salt\" is \"{}\"; must be 32 hexadecimal digits", text);
  }
  return salt;
}

Result<ScheduledRequest> read_request(const json::object& line, int64_t num_pages) {
  ScheduledRequest request;
  HADAL_ASSIGN_OR_RETURN(const json::value* id, field(line, "id"));
  HADAL_ASSIGN_OR_RETURN(request.id, read_id(*id));
  HADAL_ASSIGN_OR_RETURN(const json::array* prompt, array_field(line, "prompt"));
  const int64_t capacity = num_pages * kCachePageSize;
  const auto prompt_len = static_cast<int64_t>(prompt->size());
  if (prompt_len < 1 || prompt_len > capacity) {
    return invalid_argument("\"prompt\" has {} tokens; allowed is [1, {}]", prompt_len, capacity);
  }
  constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();
  std::vector<int32_t> ids;
  for (const json::value& value : *prompt) {
    HADAL_ASSIGN_OR_RETURN(const int64_t token, to_integer(value, "prompt", 0, kMaxInt32));
    ids.push_back(static_cast<int32_t>(token));
  }
  request.prompt = std::move(ids);
  HADAL_ASSIGN_OR_RETURN(request.max_new_tokens,
                         integer_field(line, "max_new_tokens", 0, capacity - prompt_len));
  HADAL_ASSIGN_OR_RETURN(request.max_cached_tokens,
                         integer_field(line, "max_cached_tokens", 0, prompt_len - 1));
  HADAL_ASSIGN_OR_RETURN(const int64_t priority, integer_field(line, "priority", -kMaxInt32 - 1, kMaxInt32));
  request.priority = static_cast<int32_t>(priority);
  if (line.contains("client")) {  // older records have none
    HADAL_ASSIGN_OR_RETURN(const int64_t client, integer_field(line, "client", 0, kMaxInt64));
    request.client = static_cast<uint64_t>(client);
  }
  if (line.contains("salt")) {
    HADAL_ASSIGN_OR_RETURN(const std::string salt, text_field(line, "salt"));
    HADAL_ASSIGN_OR_RETURN(request.salt, read_salt(salt));
  }
  if (line.contains("scores_prompt")) {
    HADAL_ASSIGN_OR_RETURN(request.scores_prompt, bool_field(line, "scores_prompt"));
  }
  return request;
}

class Replayer {
 public:
  Result<void> call(const json::object& line) {
    HADAL_ASSIGN_OR_RETURN(const std::string name, text_field(line, "call"));
    if (scheduler_ == nullptr) {
      if (name != "options")
        return invalid_argument("\"call\" is \"{}\"; the first call must be \"options\"", name);
      HADAL_ASSIGN_OR_RETURN(const SchedulerOptions options, read_options(line));
      scheduler_ = std::make_unique<Scheduler>(options);
    } else if (name == "add") {
      HADAL_RETURN_IF_ERROR(add(line));
    } else if (name == "abort" || name == "hold" || name == "release" || name == "defer") {
      HADAL_ASSIGN_OR_RETURN(const json::value* value, field(line, "id"));
      HADAL_ASSIGN_OR_RETURN(const RequestId id, read_id(*value));
      if (name == "abort") {
        scheduler_->abort(id);
      } else if (name == "hold") {
        scheduler_->hold(id);
      } else if (name == "release") {
        scheduler_->release(id);
      } else {
        scheduler_->defer(id);
      }
    } else if (name == "plan") {
      HADAL_RETURN_IF_ERROR(plan(line));
    } else if (name == "complete") {
      HADAL_RETURN_IF_ERROR(complete(line));
    } else if (name == "fail") {
      HADAL_RETURN_IF_ERROR(check_step(line));
      scheduler_->fail(in_flight_.front());
      in_flight_.pop_front();
    } else if (name == "flush_cache") {
      scheduler_->flush_cache();
    } else {
      return invalid_argument(
          "\"call\" is \"{}\"; allowed are add, abort, hold, release, defer, plan, complete, fail, "
          "flush_cache",
          name);
    }
    ++result_.num_calls;
    return {};
  }

  const PlanReplay& result() const { return result_; }
  void set_difference(std::string text) { result_.difference = std::move(text); }

 private:
  Result<void> add(const json::object& line) {
    HADAL_ASSIGN_OR_RETURN(ScheduledRequest request, read_request(line, scheduler_->options().num_pages));
    if (!tokens_left_.emplace(request.id, request.max_new_tokens).second)
      return invalid_argument("request {} is added twice", request.id);
    scheduler_->add(std::move(request));
    return {};
  }

  Result<void> plan(const json::object& line) {
    HADAL_ASSIGN_OR_RETURN(const json::value* recorded, field(line, "plan"));
    if (in_flight_.size() >= 2) return invalid_argument("a third step is planned while two are in flight");
    int64_t max_cost = kUnlimitedCost;
    if (line.contains("max_cost")) {
      HADAL_ASSIGN_OR_RETURN(max_cost, integer_field(line, "max_cost", 0, kMaxInt64));
    }
    int64_t width = 1;
    if (line.contains("width")) {
      HADAL_ASSIGN_OR_RETURN(
          width, integer_field(line, "width", 1, std::max<int64_t>(1, scheduler_->options().max_width)));
    }
    BatchPlan made = scheduler_->plan(max_cost, width);
    ++result_.num_plans;
    const std::string text = plan_to_json(made);
    if (json::parse(text) != *recorded) {
      result_.difference = fmt::format("recorded {}\nnow      {}", json::serialize(*recorded), text);
    }
    if (!made.empty()) in_flight_.push_back(std::move(made));
    return {};
  }

  Result<void> check_step(const json::object& line) {
    HADAL_ASSIGN_OR_RETURN(const int64_t step, integer_field(line, "step", 1, kMaxInt64));
    if (in_flight_.empty() || in_flight_.front().step != step) {
      return invalid_argument(
          "\"step\" is {}; the oldest step in flight is {}", step,
          in_flight_.empty() ? std::string("none") : std::to_string(in_flight_.front().step));
    }
    return {};
  }

  Result<void> complete(const json::object& line) {
    HADAL_RETURN_IF_ERROR(check_step(line));
    HADAL_ASSIGN_OR_RETURN(const json::array* values, array_field(line, "outcomes"));
    std::vector<ItemOutcome> outcomes;
    for (const WorkItem& item : in_flight_.front().ranks.at(0).items) {
      if (!item.samples) continue;
      if (outcomes.size() == values->size()) {
        return invalid_argument("\"outcomes\" lacks request {}", item.request_id);
      }
      const json::value& value = (*values)[outcomes.size()];
      const size_t most = item.verifies ? static_cast<size_t>(item.num_tokens) + 2 : 3;
      if (!value.is_array() || value.get_array().size() < 3 || value.get_array().size() > most ||
          !value.get_array()[2].is_bool()) {
        return invalid_argument(
            "every entry of \"outcomes\" must be [id, token, finished, up to {} further tokens]", most - 3);
      }
      const json::array& parts = value.get_array();
      HADAL_ASSIGN_OR_RETURN(const RequestId id, read_id(parts[0]));
      if (id != item.request_id) {
        return invalid_argument("\"outcomes\" names request {}, but the plan has {} there", id,
                                item.request_id);
      }
      HADAL_ASSIGN_OR_RETURN(const int64_t token, to_integer(parts[1], "token", -1, INT32_MAX));
      ItemOutcome& outcome = outcomes.emplace_back();
      outcome.request_id = id;
      outcome.token = static_cast<int32_t>(token);
      outcome.finished = parts[2].get_bool();
      for (size_t i = 3; i < parts.size(); ++i) {
        HADAL_ASSIGN_OR_RETURN(const int64_t further, to_integer(parts[i], "token", -1, INT32_MAX));
        outcome.further.push_back(static_cast<int32_t>(further));
      }
      int64_t& left = tokens_left_.at(id);
      if (outcome.token >= 0) left -= 1 + std::ssize(outcome.further);  // -1: the sample was not taken
      if (left < 0 && !outcome.further.empty())
        return invalid_argument("\"outcomes\" has more tokens than request {} may generate", id);
    }
    if (outcomes.size() != values->size()) {
      return invalid_argument("\"outcomes\" has {} entries, but the plan samples {}", values->size(),
                              outcomes.size());
    }
    scheduler_->complete(in_flight_.front(), outcomes);
    in_flight_.pop_front();
    return {};
  }

  std::unique_ptr<Scheduler> scheduler_;
  std::deque<BatchPlan> in_flight_;
  std::unordered_map<RequestId, int64_t> tokens_left_;  // tokens that each request may still generate
  PlanReplay result_;
};

}  // namespace

Result<PlanReplay> replay_plans(std::istream& record) {
  Replayer replayer;
  std::string text;
  for (int64_t line = 1; std::getline(record, text); ++line) {
    if (record.eof()) return data_loss("line {} of the record is cut off", line);
    boost::system::error_code error;
    const json::value value = json::parse(text, error);
    if (error) return invalid_argument("line {} of the record is not JSON: {}", line, error.message());
    if (!value.is_object()) return invalid_argument("line {} of the record is not a JSON object", line);
    if (const Result<void> done = replayer.call(value.get_object()); !done.ok()) {
      return make_status(done.status().code, "line {} of the record: {}", line, done.status().message);
    }
    if (!replayer.result().difference.empty()) {
      replayer.set_difference(fmt::format("line {}\n{}", line, replayer.result().difference));
      break;
    }
  }
  if (record.bad()) return data_loss("the record cannot be read");
  return replayer.result();
}

}  // namespace hadal
