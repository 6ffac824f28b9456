#include "client/bench_dataset.h"

#include <algorithm>
#include <cmath>

#include <boost/json.hpp>

#include "base/check.h"
#include "base/mapped_file.h"
#include "client/bench_text.h"
#include "client/text_lines.h"

namespace hadal::client {
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

// Returns the first two messages of a conversation; nothing if it is shorter.
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
    if (error) return data_loss("{}: is not a JSON list: {}", path, error.message());
    for (const json::value& item : parsed.as_array()) take(item);
  } else {
    for (const TextLine& line : lines_of(text)) {
      const json::value parsed = json::parse(line.text, error);
      if (error) return data_loss("{}:{}: not JSON: {}", path, line.number, error.message());
      take(parsed);
    }
  }
  if (turns.empty()) return data_loss("{}: contains no conversation of at least two messages", path);
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
  std::vector<int32_t> usable;  // all ids of tokens that are not special, with a tokenizer
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
      // The server adds this token itself when it encodes the text.
      if (adds_bos && request.prompt.starts_with(bos)) request.prompt.erase(0, bos.size());
    }
    request.prompt_tokens = static_cast<int64_t>(tokenizer.encode(request.prompt, true).size());
    request.output_tokens = options.sharegpt_output_len > 0
                                ? options.sharegpt_output_len
                                : static_cast<int64_t>(tokenizer.encode(turn.answer, false).size());
    constexpr int64_t kShortest = 2;  // shorter ones do not measure speed
    if (request.prompt_tokens < kShortest || request.output_tokens < kShortest) continue;
    if (options.sharegpt_context_len > 0 &&
        request.prompt_tokens + request.output_tokens > options.sharegpt_context_len) {
      continue;
    }
    requests.push_back(std::move(request));
  }
  if (requests.empty())
    return data_loss("{}: every conversation is outside the limits on length", options.path);
  return requests;
}

std::vector<LoadRequest> make_shared_prefix(const DatasetOptions& options, const Tokenizer& tokenizer) {
  TextMaker maker(tokenizer, options.seed);
  std::vector<LoadRequest> requests;
  for (int64_t group = 0; group < options.gsp_num_groups; ++group) {
    const std::string system = maker.make(options.gsp_system_prompt_len, nullptr);
    for (int64_t i = 0; i < options.gsp_prompts_per_group; ++i) {
      LoadRequest request;
      // The tokens that a tokenizer adds are counted once per prompt, with the system prompt. make() counts
      // them again for the question, so its length is increased by as many.
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

bool needs_tokenizer(const DatasetOptions& options) {
  return options.name != "random-ids";
}

Result<std::vector<LoadRequest>> make_dataset(const DatasetOptions& options, const Tokenizer* tokenizer,
                                              std::optional<ChatFormat> format, int64_t vocab_size) {
  if (!needs_tokenizer(options)) return make_random_ids(options, tokenizer, vocab_size);
  HADAL_CHECK(tokenizer != nullptr, "dataset {}", options.name);
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

}  // namespace hadal::client
