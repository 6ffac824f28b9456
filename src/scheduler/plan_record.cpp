#include "scheduler/plan_record.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cerrno>
#include <cstring>
#include <iterator>

#include "base/log.h"

namespace hadal {
namespace {

std::string_view name_of(SchedulePolicy policy) {
  switch (policy) {
    case SchedulePolicy::kFcfs:
      return "fcfs";
    case SchedulePolicy::kLpm:
      return "lpm";
    case SchedulePolicy::kPriority:
      return "priority";
    case SchedulePolicy::kLof:
      return "lof";
  }
  return "";
}

std::string_view name_of(EvictionPolicy policy) {
  switch (policy) {
    case EvictionPolicy::kLru:
      return "lru";
    case EvictionPolicy::kLfu:
      return "lfu";
    case EvictionPolicy::kPriority:
      return "priority";
  }
  return "";
}

const char* name_of(WorkKind kind) {
  if (kind == WorkKind::kPrefill) return "prefill";
  return kind == WorkKind::kAbsorbedPrefill ? "absorbed" : "decode";
}

void append_rank(const RankPlan& rank, std::string& out) {
  auto to = std::back_inserter(out);
  const char* comma = "";
  out += "{\"copies\":[";
  for (const PageCopy& copy : rank.copies) {
    fmt::format_to(to, "{}[{},{},{}]", std::exchange(comma, ","), copy.source, copy.target, copy.num_rows);
  }
  comma = "";
  out += "],\"items\":[";
  for (const WorkItem& item : rank.items) {
    fmt::format_to(to,
                   "{}{{\"id\":{},\"slot\":{},\"kind\":\"{}\",\"begin\":{},\"num_tokens\":{},"
                   "\"first_new_page\":{},\"num_new_pages\":{},\"flags\":\"{}{}{}{}{}\"}}",
                   std::exchange(comma, ","), item.request_id, item.slot, name_of(item.kind), item.begin,
                   item.num_tokens, item.first_new_page, item.num_new_pages, item.starts_slot ? "+" : "",
                   item.input_from_previous ? "<" : "", item.verifies ? "?" : "", item.samples ? ">" : "",
                   item.ends_request ? "." : "");
  }
  fmt::format_to(to, "],\"new_pages\":[{}]}}", fmt::join(rank.new_pages, ","));
}

}  // namespace

std::string plan_to_json(const BatchPlan& plan) {
  std::string out = fmt::format("{{\"step\":{},\"ranks\":[", plan.step);
  for (size_t i = 0; i < plan.ranks.size(); ++i) {
    if (i > 0) out += ',';
    append_rank(plan.ranks[i], out);
  }
  fmt::format_to(std::back_inserter(out),
                 "],\"num_new_requests\":{},\"num_prefill_tokens\":{},\"num_decode_tokens\":{},"
                 "\"num_cached_tokens\":{},\"retracted\":[{}]}}",
                 plan.num_new_requests, plan.num_prefill_tokens, plan.num_decode_tokens,
                 plan.num_cached_tokens, fmt::join(plan.retracted, ","));
  return out;
}

Result<std::unique_ptr<PlanRecorder>> PlanRecorder::open(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "wbe");
  if (file == nullptr) return data_loss("record of plans: cannot write {}: {}", path, std::strerror(errno));
  return std::unique_ptr<PlanRecorder>(new PlanRecorder(file, path));
}

PlanRecorder::PlanRecorder(std::FILE* file, std::string path) : file_(file), path_(std::move(path)) {}

PlanRecorder::~PlanRecorder() {
  if (file_ != nullptr && std::fclose(file_) != 0) {
    log_error("record of plans incomplete path={} error={}", path_, std::strerror(errno));
  }
}

void PlanRecorder::write(std::string line) {
  if (file_ == nullptr) return;
  line += '\n';
  if (std::fwrite(line.data(), 1, line.size(), file_) == line.size()) return;
  log_error("record of plans stopped path={} error={}", path_, std::strerror(errno));
  std::fclose(file_);
  file_ = nullptr;
}

void PlanRecorder::start(const SchedulerOptions& options) {
  write(fmt::format(
      "{{\"call\":\"options\",\"num_pages\":{},\"max_running_requests\":{},\"chunked_prefill_size\":{},"
      "\"max_prefill_tokens\":{},\"policy\":\"{}\",\"low_priority_values_first\":{},\"conservativeness\":{},"
      "\"eviction\":\"{}\",\"enable_radix_cache\":{},\"cache_generated_tokens\":{},\"positions_per_row\":{},"
      "\"rows_per_score\":{},\"rows_per_1024_expanded\":{},\"absorbed_positions_per_row\":{},"
      "\"max_scored_tokens\":{},\"max_width\":{}}}",
      options.num_pages, options.max_running_requests, options.chunked_prefill_size,
      options.max_prefill_tokens, name_of(options.policy), options.low_priority_values_first,
      options.conservativeness, name_of(options.eviction), options.enable_radix_cache,
      options.cache_generated_tokens, options.prompt_costs.positions_per_row,
      options.prompt_costs.rows_per_score, options.prompt_costs.rows_per_1024_expanded,
      options.prompt_costs.absorbed_positions_per_row, options.max_scored_tokens, options.max_width));
}

void PlanRecorder::add(const ScheduledRequest& request) {
  if (file_ == nullptr) return;
  write(fmt::format(
      "{{\"call\":\"add\",\"id\":{},\"max_new_tokens\":{},\"max_cached_tokens\":{},\"priority\":{},"
      "\"client\":{},{}{}\"prompt\":[{}]}}",
      request.id, request.max_new_tokens, request.max_cached_tokens, request.priority, request.client,
      request.salt == CacheSalt{}
          ? ""
          : fmt::format("\"salt\":\"{:016x}{:016x}\",", request.salt.high, request.salt.low),
      request.scores_prompt ? "\"scores_prompt\":true," : "", fmt::join(request.prompt, ",")));
}

void PlanRecorder::hold(const char* call, RequestId id) {
  write(fmt::format("{{\"call\":\"{}\",\"id\":{}}}", call, id));
}

void PlanRecorder::abort(RequestId id) {
  write(fmt::format("{{\"call\":\"abort\",\"id\":{}}}", id));
}

void PlanRecorder::plan(const BatchPlan& plan, int64_t max_cost, int64_t width) {
  if (file_ == nullptr) return;
  const std::string limit =
      max_cost == kUnlimitedCost ? std::string() : fmt::format("\"max_cost\":{},", max_cost);
  const std::string tokens = width == 1 ? std::string() : fmt::format("\"width\":{},", width);
  write(fmt::format("{{\"call\":\"plan\",{}{}\"plan\":{}}}", limit, tokens, plan_to_json(plan)));
}

void PlanRecorder::complete(int64_t step, std::span<const ItemOutcome> outcomes) {
  if (file_ == nullptr) return;
  std::string line = fmt::format("{{\"call\":\"complete\",\"step\":{},\"outcomes\":[", step);
  const char* comma = "";
  for (const ItemOutcome& outcome : outcomes) {
    fmt::format_to(std::back_inserter(line), "{}[{},{},{}{}{}]", std::exchange(comma, ","),
                   outcome.request_id, outcome.token, outcome.finished, outcome.further.empty() ? "" : ",",
                   fmt::join(outcome.further, ","));
  }
  write(std::move(line) + "]}");
}

void PlanRecorder::fail(int64_t step) {
  write(fmt::format("{{\"call\":\"fail\",\"step\":{}}}", step));
}
void PlanRecorder::flush_cache() {
  write("{\"call\":\"flush_cache\"}");
}

}  // namespace hadal
