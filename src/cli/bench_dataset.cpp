#include "cli/bench_dataset.h"

#include <algorithm>
#include <cmath>

#include <boost/json.hpp>

#include "base/mapped_file.h"
#include "cli/bench_text.h"

namespace hadal::cli {
namespace {

namespace json = boost::json;

constexpr size_t kMaxFileBytes = size_t{4} << 30;

struct Turn {
  std::string prompt;
  std::string answer;
};

std::string text_of(const json::value& message) {
  const json::object* object = message.if_object();
  if (object == nullptr) return {};
  for (const char* name : {"value", "content"}) {
    const json::value* text = object->if_contains(name);
    if (text != nullptr && text->is_string()) return text->as_string().c_str();
  }
  return {};
}

// The first two messages of a conversation; nothing for shorter ones.
std::optional<Turn> first_turn(const json::value& item) {
  const json::object* object = item.if_object();
  if (object == nullptr) return std::nullopt;
  for (const char* name : {"conversations", "conversation", "messages"}) {
    const json::value* list = object->if_contains(name);
    if (list == nullptr || !list->is_array() || list->as_array().size() < 2) continue;
    return Turn{text_of(list->as_array()[0]), text_of(list->as_array()[1])};
  }
  return std::nullopt;
}

Result<std::vector<Turn>> load_turns(const std::string& path) {
  HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxFileBytes));
  std::vector<Turn> turns;
  const auto take = [&turns](const json::value& item) {
    std::optional<Turn> turn = first_turn(item);
    if (turn && !turn->prompt.empty()) turns.push_back(std::move(*turn));
  };
  json::error_code error;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string::npos && text[first] == '[') {
    const json::value parsed = json::parse(text, error);
    if (error) return data_loss("{}: not a JSON list: {}", path, error.message());
    for (const json::value& item : parsed.as_array()) take(item);
  } else {
    int64_t number = 0;
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      const std::string_view line(text.data() + begin, end - begin);
      begin = end + 1;
      ++number;
      if (line.find_first_not_of(" \t\r") == std::string_view::npos) continue;
      const json::value parsed = json::parse(line, error);
      if (error) return data_loss("{}:{}: not JSON: {}", path, number, error.message());
      take(parsed);
    }
  }
  if (turns.empty()) return data_loss("{}: no conversation of two messages", path);
  return turns;
}

int64_t drawn_length(std::mt19937_64& random, int64_t full, double ratio) {
  const auto least = static_cast<int64_t>(static_cast<double>(full) * ratio);
  return draw_between(random, std::clamp<int64_t>(least, 1, full), full);
}

Result<std::vector<LoadRequest>> make_random(const DatasetOptions& options, const Tokenizer& tokenizer) {
  std::mt19937_64 random(options.seed);
  TextMaker maker(tokenizer, options.seed + 1);
  std::vector<Turn> turns;
  if (!options.path.empty()) {
    HADAL_ASSIGN_OR_RETURN(turns, load_turns(options.path));
    shuffle_by(random, turns);
  }
  std::vector<LoadRequest> requests(static_cast<size_t>(options.num_prompts));
  for (size_t i = 0; i < requests.size(); ++i) {
    LoadRequest& request = requests[i];
    const int64_t input = drawn_length(random, options.random_input_len, options.random_range_ratio);
    request.output_tokens = drawn_length(random, options.random_output_len, options.random_range_ratio);
    request.prompt = turns.empty() ? maker.make(input, &request.prompt_tokens)
                                   : maker.cut(turns[i % turns.size()].prompt, input, &request.prompt_tokens);
  }
  return requests;
}

std::vector<LoadRequest> make_random_ids(const DatasetOptions& options, const Tokenizer* tokenizer,
                                         int64_t vocab_size) {
  std::mt19937_64 random(options.seed);
  std::vector<int32_t> usable;  // with a tokenizer: what has a token and is no special one
  for (int32_t id = 0; tokenizer != nullptr && id < tokenizer->vocab_size(); ++id) {
    if (!tokenizer->is_special(id) && !tokenizer->token_bytes(id).empty()) usable.push_back(id);
  }
  std::vector<LoadRequest> requests(static_cast<size_t>(options.num_prompts));
  for (LoadRequest& request : requests) {
    request.prompt_tokens = drawn_length(random, options.random_input_len, options.random_range_ratio);
    request.output_tokens = drawn_length(random, options.random_output_len, options.random_range_ratio);
    request.ids.resize(static_cast<size_t>(request.prompt_tokens));
    for (int32_t& id : request.ids) {
      id =
          usable.empty()
              ? static_cast<int32_t>(draw_between(random, 0, vocab_size - 1))
              : usable[static_cast<size_t>(draw_between(random, 0, static_cast<int64_t>(usable.size()) - 1))];
    }
  }
  return requests;
}

Result<std::vector<LoadRequest>> make_sharegpt(const DatasetOptions& options, const Tokenizer& tokenizer,
                                               std::optional<ChatFormat> format) {
  HADAL_ASSIGN_OR_RETURN(std::vector<Turn> turns, load_turns(options.path));
  std::mt19937_64 random(options.seed);
  shuffle_by(random, turns);
  const std::string bos = tokenizer.bos_id() ? tokenizer.id_to_token(*tokenizer.bos_id()) : "";
  const std::vector<int32_t> empty = tokenizer.encode("", true);
  const bool adds_bos = !empty.empty() && tokenizer.bos_id() == empty[0];
  std::vector<LoadRequest> requests;
  for (const Turn& turn : turns) {
    if (requests.size() == static_cast<size_t>(options.num_prompts)) break;
    LoadRequest request;
    request.prompt = turn.prompt + options.prompt_suffix;
    if (format) {
      const std::vector<ChatMessage> messages = {{.role = "user", .content = request.prompt}};
      HADAL_ASSIGN_OR_RETURN(request.prompt, render_chat(*format, messages, ChatOptions{}));
      // Whoever encodes the text adds this itself.
      if (adds_bos && request.prompt.starts_with(bos)) request.prompt.erase(0, bos.size());
    }
    request.prompt_tokens = static_cast<int64_t>(tokenizer.encode(request.prompt, true).size());
    request.output_tokens = options.sharegpt_output_len > 0
                                ? options.sharegpt_output_len
                                : static_cast<int64_t>(tokenizer.encode(turn.answer, false).size());
    constexpr int64_t kShortest = 2;  // shorter ones say nothing about speed
    if (request.prompt_tokens < kShortest || request.output_tokens < kShortest) continue;
    if (options.sharegpt_context_len > 0 &&
        request.prompt_tokens + request.output_tokens > options.sharegpt_context_len) {
      continue;
    }
    requests.push_back(std::move(request));
  }
  if (requests.empty()) return data_loss("{}: no conversation passes the limits on length", options.path);
  return requests;
}

std::vector<LoadRequest> make_shared_prefix(const DatasetOptions& options, const Tokenizer& tokenizer) {
  TextMaker maker(tokenizer, options.seed);
  std::vector<LoadRequest> requests;
  for (int64_t group = 0; group < options.gsp_num_groups; ++group) {
    const std::string system = maker.make(options.gsp_system_prompt_len, nullptr);
    for (int64_t i = 0; i < options.gsp_prompts_per_group; ++i) {
      LoadRequest request;
      // The question brings no added tokens of its own: the prompt has them once.
      request.prompt = system + "\n\n" + maker.make(options.gsp_question_len + maker.num_added(), nullptr);
      request.prompt_tokens = maker.count(request.prompt);
      request.output_tokens = options.gsp_output_len;
      requests.push_back(std::move(request));
    }
  }
  std::mt19937_64 random(options.seed);
  shuffle_by(random, requests);
  if (options.num_prompts_is_set && requests.size() > static_cast<size_t>(options.num_prompts)) {
    requests.resize(static_cast<size_t>(options.num_prompts));
  }
  return requests;
}

}  // namespace

Result<DatasetOptions> resolve_dataset(const ParsedFlags& flags) {
  DatasetOptions options;
  options.path = flags.text_or("dataset-path", "");
  options.name = flags.text_or("dataset-name", options.path.empty() ? "random" : "sharegpt");
  if (options.name == "sharegpt" && options.path.empty()) {
    return invalid_argument("--dataset-name sharegpt: needs --dataset-path, a local file of conversations");
  }
  if (!options.path.empty() && options.name != "sharegpt" && options.name != "random") {
    return invalid_argument("--dataset-path: --dataset-name {} reads no file", options.name);
  }
  options.num_prompts_is_set = flags.has("num-prompts");
  options.num_prompts = flags.integer("num-prompts").value_or(options.num_prompts);
  options.random_input_len = flags.integer("random-input-len").value_or(options.random_input_len);
  options.random_output_len = flags.integer("random-output-len").value_or(options.random_output_len);
  options.random_range_ratio = flags.number("random-range-ratio").value_or(options.random_range_ratio);
  options.sharegpt_output_len = flags.integer("sharegpt-output-len").value_or(0);
  options.sharegpt_context_len = flags.integer("sharegpt-context-len").value_or(0);
  options.prompt_suffix = flags.text_or("prompt-suffix", "");
  options.apply_chat_template = flags.has("apply-chat-template");
  options.gsp_num_groups = flags.integer("gsp-num-groups").value_or(options.gsp_num_groups);
  options.gsp_prompts_per_group =
      flags.integer("gsp-prompts-per-group").value_or(options.gsp_prompts_per_group);
  options.gsp_system_prompt_len =
      flags.integer("gsp-system-prompt-len").value_or(options.gsp_system_prompt_len);
  options.gsp_question_len = flags.integer("gsp-question-len").value_or(options.gsp_question_len);
  options.gsp_output_len = flags.integer("gsp-output-len").value_or(options.gsp_output_len);
  options.ids_only = flags.has("tokenize-prompt");
  options.seed = static_cast<uint64_t>(flags.integer("seed").value_or(1));
  return options;
}

Result<std::vector<LoadRequest>> make_dataset(const DatasetOptions& options, const Tokenizer* tokenizer,
                                              std::optional<ChatFormat> format, int64_t vocab_size) {
  if (options.name == "random-ids") return make_random_ids(options, tokenizer, vocab_size);
  if (tokenizer == nullptr) {
    return invalid_argument(
        "--dataset-name {}: needs a tokenizer to make prompts of a given length: use --tokenizer-path, or "
        "--dataset-name random-ids",
        options.name);
  }
  std::vector<LoadRequest> requests;
  if (options.name == "random") {
    HADAL_ASSIGN_OR_RETURN(requests, make_random(options, *tokenizer));
  } else if (options.name == "sharegpt") {
    HADAL_ASSIGN_OR_RETURN(requests, make_sharegpt(options, *tokenizer, format));
  } else {
    requests = make_shared_prefix(options, *tokenizer);
  }
  for (LoadRequest& request : requests) {
    if (options.ids_only) request.ids = tokenizer->encode(request.prompt, true);
  }
  return requests;
}

}  // namespace hadal::cli
