#include "client/bench_backend.h"

#include <fmt/ranges.h>

#include <vector>

#include <boost/json.hpp>

namespace hadal::client {
namespace {

namespace json = boost::json;

constexpr Backend kBackends[] = {
    {"sglang", ServerApi::kGenerate, 30000},        {"sglang-native", ServerApi::kGenerate, 30000},
    {"sglang-oai", ServerApi::kCompletions, 30000}, {"sglang-oai-chat", ServerApi::kChat, 30000},
    {"vllm", ServerApi::kCompletions, 8000},        {"vllm-chat", ServerApi::kChat, 8000},
    {"lmdeploy", ServerApi::kCompletions, 23333},   {"lmdeploy-chat", ServerApi::kChat, 23333},
    {"openai", ServerApi::kCompletions, 30000},     {"openai-chat", ServerApi::kChat, 30000},
};

// Fields of `from` replace those of `into`; objects in both are merged field by field.
void merge(json::object& into, const json::object& from) {
  for (const auto& [name, value] : from) {
    json::value* there = into.if_contains(name);
    if (there != nullptr && there->is_object() && value.is_object()) {
      merge(there->as_object(), value.as_object());
    } else {
      into[name] = value;
    }
  }
}

const json::object* object_in(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  return value == nullptr ? nullptr : value->if_object();
}

std::string_view string_in(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_string()) return {};
  return {value->get_string().data(), value->get_string().size()};
}

std::optional<int64_t> count_in(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  if (value == nullptr || !value->is_number()) return std::nullopt;
  json::error_code error;
  const auto count = value->to_number<int64_t>(error);
  return error ? std::nullopt : std::optional(count);
}

// Returns the first element of a list of objects; null if there is none.
const json::object* first_in(const json::object& object, std::string_view name) {
  const json::value* value = object.if_contains(name);
  const json::array* list = value == nullptr ? nullptr : value->if_array();
  return list == nullptr || list->empty() ? nullptr : list->front().if_object();
}

}  // namespace

Result<Backend> find_backend(std::string_view name) {
  for (const Backend& backend : kBackends) {
    if (backend.name == name) return backend;
  }
  std::vector<std::string_view> names;
  for (const Backend& backend : kBackends) names.push_back(backend.name);
  return invalid_argument("--backend {}: must be one of {}", name.empty() ? "''" : name,
                          fmt::join(names, ", "));
}

std::string_view target_of(ServerApi api) {
  if (api == ServerApi::kGenerate) return "/generate";
  return api == ServerApi::kCompletions ? "/v1/completions" : "/v1/chat/completions";
}

Result<void> check_extra(std::string_view extra, std::string_view source) {
  json::error_code error;
  const json::value parsed = json::parse(extra, error);
  if (error || !parsed.is_object()) {
    return invalid_argument("{} {}: must be a JSON object", source, extra.empty() ? "''" : extra);
  }
  return {};
}

std::string make_body(const LoadRequest& request, const BodyOptions& options) {
  json::object body;
  const json::array ids(request.ids.begin(), request.ids.end());
  if (options.api == ServerApi::kGenerate) {
    if (request.ids.empty()) {
      body["text"] = request.prompt;
    } else {
      body["input_ids"] = ids;
    }
    body["sampling_params"] = {{"temperature", options.temperature},
                               {"max_new_tokens", request.output_tokens},
                               {"ignore_eos", options.ignore_eos}};
    if (options.return_logprob) body["return_logprob"] = true;
  } else {
    body["model"] = options.model;
    body["temperature"] = options.temperature;
    body["ignore_eos"] = options.ignore_eos;
    if (options.stream) body["stream_options"] = {{"include_usage", true}};
    if (options.api == ServerApi::kCompletions) {
      if (request.ids.empty()) {
        body["prompt"] = request.prompt;
      } else {
        body["prompt"] = ids;
      }
      body["max_tokens"] = request.output_tokens;
      if (options.return_logprob) body["logprobs"] = 1;
    } else {
      body["messages"] = json::array{{{"role", "user"}, {"content", request.prompt}}};
      body["max_completion_tokens"] = request.output_tokens;
      if (options.return_logprob) body["logprobs"] = true;
    }
  }
  body["stream"] = options.stream;
  if (!options.extra.empty()) merge(body, json::parse(options.extra).as_object());
  return json::serialize(body);
}

int64_t AnswerReader::take_event(std::string_view data) {
  if (data == "[DONE]") {
    saw_done_ = true;
    return 0;
  }
  return take_json(data, false);
}

void AnswerReader::take_body(std::string_view body) {
  take_json(body, true);
}

int64_t AnswerReader::take_json(std::string_view text, bool whole) {
  unsigned char memory[8192];  // room for most events, so that they need no allocation
  json::monotonic_resource resource(memory, sizeof(memory));
  json::error_code problem;
  const json::value parsed = json::parse(text, problem, &resource);
  const json::object* object = parsed.if_object();
  if (!problem && whole && parsed.is_array() && !parsed.get_array().empty()) {
    object = parsed.get_array().front().if_object();  // SGLang answers a batch with a list
  }
  if (problem || object == nullptr) {
    error_ = fmt::format("the answer is not a JSON object: {}", text.substr(0, 80));
    return 0;
  }
  if (const json::value* error = object->if_contains("error"); error != nullptr && !error->is_null()) {
    const json::object* inner = error->if_object();
    error_ = inner != nullptr ? std::string(string_in(*inner, "message")) : json::serialize(*error);
    if (error_.empty()) error_ = "the server sent an error without a message";
    return 0;
  }
  int64_t fresh = 0;
  if (api_ == ServerApi::kGenerate) {
    const int64_t before = output_tokens();
    const std::string_view now = string_in(*object, "text");
    // The text is cumulative unless the server is configured to send increments.
    if (now.size() >= text_.size() && now.substr(0, text_.size()) == text_) {
      text_.assign(now);
    } else {
      text_ += now;
    }
    if (!now.empty()) ++num_text_events_;
    if (const json::object* meta = object_in(*object, "meta_info")) {
      if (const auto count = count_in(*meta, "completion_tokens")) counted_ = count;
      prompt_tokens_ = count_in(*meta, "prompt_tokens").value_or(prompt_tokens_);
      cached_tokens_ = count_in(*meta, "cached_tokens").value_or(cached_tokens_);
      const json::object* reason = object_in(*meta, "finish_reason");
      if (reason != nullptr && string_in(*reason, "type") == "abort") {
        error_ = fmt::format("aborted: {}", string_in(*reason, "message"));
      }
    }
    fresh = output_tokens() - before;
  } else {
    if (const json::object* choice = first_in(*object, "choices")) {
      const size_t before = text_.size();
      if (api_ == ServerApi::kCompletions) {
        text_ += string_in(*choice, "text");
      } else if (const json::object* delta = object_in(*choice, whole ? "message" : "delta")) {
        text_ += string_in(*delta, "reasoning_content");
        text_ += string_in(*delta, "content");
      }
      fresh = text_.size() > before ? 1 : 0;
      num_text_events_ += fresh;
    }
    if (const json::object* usage = object_in(*object, "usage")) {
      if (const auto count = count_in(*usage, "completion_tokens")) counted_ = count;
      prompt_tokens_ = count_in(*usage, "prompt_tokens").value_or(prompt_tokens_);
      if (const json::object* details = object_in(*usage, "prompt_tokens_details")) {
        cached_tokens_ = count_in(*details, "cached_tokens").value_or(cached_tokens_);
      }
    }
  }
  return fresh;
}

}  // namespace hadal::client
