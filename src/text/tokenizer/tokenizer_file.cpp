#include "text/tokenizer/tokenizer_file.h"

#include <algorithm>

#include "text/json_reader.h"

namespace hadal {

namespace {

using Json = nlohmann::ordered_json;

constexpr std::string_view kFile = "tokenizer.json";
constexpr std::string_view kConfigFile = "tokenizer_config.json";

// Formats a value for an error: the text is short and on one line.
std::string shown_json(const Json& value) {
  std::string text = value.dump(-1, ' ', false, Json::error_handler_t::replace);
  if (text.size() > 60) {
    text.resize(57);
    text += "...";
  }
  return text;
}

// Wraps one object of the file, with its path for messages.
class Section {
 public:
  Section(const Json& object, std::string where) : object_(object), where_(std::move(where)) {}

  const std::string& where() const { return where_; }

  // Returns the member, or null if it is absent or null.
  const Json* find(std::string_view key) const {
    if (!object_.is_object()) return nullptr;
    const auto at = object_.find(std::string(key));
    return at == object_.end() || at->is_null() ? nullptr : &*at;
  }

  Result<bool> boolean(std::string_view key, bool otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_boolean()) return wrong(key, *value, "true or false");
    return value->get<bool>();
  }
  Result<std::string> string(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return data_loss("{}: {}.{} is missing", kFile, where_, key);
    if (!value->is_string()) return wrong(key, *value, "a string");
    return value->get<std::string>();
  }
  // Checks members that must be absent, null, false, zero or empty, because the feature that they enable is
  // not implemented.
  Result<void> unused(std::initializer_list<std::string_view> keys) const {
    for (const std::string_view key : keys) {
      const Json* value = find(key);
      if (value == nullptr || *value == Json(false) || *value == Json(0) || *value == Json(0.0) ||
          *value == Json(""))
        continue;
      return unsupported("{}: {}.{} = {} is not supported (supported: null)", kFile, where_, key,
                         shown_json(*value));
    }
    return {};
  }
  Status wrong(std::string_view key, const Json& value, std::string_view allowed) const {
    return data_loss("{}: {}.{} is {}; allowed is {}", kFile, where_, key, shown_json(value), allowed);
  }

 private:
  const Json& object_;
  std::string where_;
};

Status unknown_type(const Section& section, std::string_view type, std::string_view supported) {
  return unsupported("{}: {}.type = \"{}\" is not supported (supported: {})", kFile, section.where(), type,
                     supported);
}

// Calls each(section) for `value` itself or, if it is a Sequence, for its members under `list_key`, in
// order.
template <typename Each>
Result<void> for_each_component(const Json* value, const std::string& where, std::string_view list_key,
                                Each&& each, int depth = 0) {
  if (value == nullptr || value->is_null()) return {};
  if (!value->is_object())
    return data_loss("{}: {} is {}; allowed is an object", kFile, where, shown_json(*value));
  const Section section(*value, where);
  HADAL_ASSIGN_OR_RETURN(const std::string type, section.string("type"));
  if (type != "Sequence") return each(section, type);
  if (depth == 8) return unsupported("{}: {} contains Sequences nested deeper than 8", kFile, where);
  const Json* list = section.find(list_key);
  if (list == nullptr || !list->is_array())
    return data_loss("{}: {}.{} is missing or not a list", kFile, where, list_key);
  for (size_t i = 0; i < list->size(); ++i)
    HADAL_RETURN_IF_ERROR(for_each_component(&(*list)[i], fmt::format("{}.{}[{}]", where, list_key, i),
                                             list_key, each, depth + 1));
  return {};
}

// Returns a regular expression that matches a plain text.
std::string quote_regex(std::string_view text) {
  std::string pattern;
  for (const char c : text) {
    if (std::string_view("\\^$.|?*+()[]{}-&#~").find(c) != std::string_view::npos) pattern += '\\';
    pattern += c;
  }
  return pattern;
}

Result<SplitStep> parse_split(const Section& section) {
  HADAL_ASSIGN_OR_RETURN(const std::string behavior, section.string("behavior"));
  if (behavior != "Isolated")
    return unsupported("{}: {}.behavior = \"{}\" is not supported (supported: Isolated)", kFile,
                       section.where(), behavior);
  // With Isolated, matches and the text between them are both pieces, so inverting changes nothing.
  HADAL_ASSIGN_OR_RETURN([[maybe_unused]] const bool invert, section.boolean("invert", false));
  const Json* pattern = section.find("pattern");
  if (pattern != nullptr && pattern->is_object() && pattern->size() == 1 && pattern->front().is_string()) {
    const std::string text = pattern->front().get<std::string>();
    const std::string& kind = pattern->begin().key();
    if (kind == "Regex") return SplitStep{text};
    if (kind == "String") return SplitStep{quote_regex(text)};
  }
  return data_loss("{}: {}.pattern is {}; allowed are {{\"Regex\": \"…\"}} and {{\"String\": \"…\"}}", kFile,
                   section.where(), pattern == nullptr ? "missing" : shown_json(*pattern));
}

Result<void> parse_pre_tokenizer(const Json* value, std::vector<PreTokenizerStep>& out) {
  HADAL_RETURN_IF_ERROR(for_each_component(
      value, "pre_tokenizer", "pretokenizers",
      [&](const Section& section, const std::string& type) -> Result<void> {
        if (type == "Split") {
          HADAL_ASSIGN_OR_RETURN(SplitStep step, parse_split(section));
          out.emplace_back(std::move(step));
        } else if (type == "Digits") {
          HADAL_ASSIGN_OR_RETURN(const bool individual, section.boolean("individual_digits", false));
          out.emplace_back(DigitsStep{individual});
        } else if (type == "ByteLevel") {
          HADAL_ASSIGN_OR_RETURN(const bool prefix, section.boolean("add_prefix_space", true));
          if (prefix)
            return unsupported("{}: {}.add_prefix_space = true is not supported (supported: false)", kFile,
                               section.where());
          HADAL_ASSIGN_OR_RETURN(const bool regex, section.boolean("use_regex", true));
          out.emplace_back(ByteLevelStep{regex});
        } else {
          return unknown_type(section, type, "Sequence, Split, Digits, ByteLevel");
        }
        return {};
      }));
  const auto is_byte_level = [](const PreTokenizerStep& s) {
    return std::holds_alternative<ByteLevelStep>(s);
  };
  if (out.empty() || !is_byte_level(out.back()) || std::count_if(out.begin(), out.end(), is_byte_level) != 1)
    return unsupported(
        "{}: pre_tokenizer must end with its only ByteLevel (only byte-level BPE is supported)", kFile);
  return {};
}

Result<void> parse_template(const Section& section, TokenizerFile& out) {
  const Json* single = section.find("single");
  if (single == nullptr || !single->is_array())
    return data_loss("{}: {}.single is missing or not a list", kFile, section.where());
  bool after_text = false;
  for (const Json& item : *single) {
    const bool is_piece = item.is_object() && item.size() == 1 && item.front().is_object();
    if (is_piece && item.begin().key() == "Sequence" && !after_text) {
      after_text = true;
    } else if (is_piece && item.begin().key() == "SpecialToken" && item.front().contains("id") &&
               item.front()["id"].is_string()) {
      (after_text ? out.template_suffix : out.template_prefix)
          .push_back(item.front()["id"].get<std::string>());
    } else {
      return data_loss("{}: {}.single contains {}; allowed are SpecialToken and one Sequence", kFile,
                       section.where(), shown_json(item));
    }
  }
  if (!after_text) return data_loss("{}: {}.single has no Sequence", kFile, section.where());
  return {};
}

Result<void> parse_added_tokens(const Json* list, std::vector<AddedTokenSpec>& out) {
  if (list == nullptr) return {};
  if (!list->is_array())
    return data_loss("{}: added_tokens is {}; allowed is a list", kFile, shown_json(*list));
  for (size_t i = 0; i < list->size(); ++i) {
    const Section section((*list)[i], fmt::format("added_tokens[{}]", i));
    AddedTokenSpec token;
    HADAL_ASSIGN_OR_RETURN(token.content, section.string("content"));
    if (token.content.empty()) return data_loss("{}: {}.content is empty", kFile, section.where());
    const Json* id = section.find("id");
    if (id == nullptr || !id->is_number_unsigned() || id->get<uint64_t>() > uint64_t{INT32_MAX})
      return data_loss("{}: {}.id is {}; allowed is an integer of 0 to {}", kFile, section.where(),
                       id == nullptr ? "missing" : shown_json(*id), INT32_MAX);
    token.id = id->get<int32_t>();
    HADAL_ASSIGN_OR_RETURN(token.single_word, section.boolean("single_word", false));
    HADAL_ASSIGN_OR_RETURN(token.lstrip, section.boolean("lstrip", false));
    HADAL_ASSIGN_OR_RETURN(token.rstrip, section.boolean("rstrip", false));
    HADAL_ASSIGN_OR_RETURN(token.special, section.boolean("special", false));
    HADAL_ASSIGN_OR_RETURN(token.normalized, section.boolean("normalized", !token.special));
    out.push_back(std::move(token));
  }
  return {};
}

Result<void> parse_model(const Json* value, TokenizerDocument& document, TokenizerFile& out) {
  if (value == nullptr || !value->is_object())
    return data_loss("{}: model is missing or not an object", kFile);
  const Section model(*value, "model");
  // Files of old versions of the format have no type, so the model is recognised by its members.
  if (model.find("type") != nullptr) {
    HADAL_ASSIGN_OR_RETURN(const std::string type, model.string("type"));
    if (type != "BPE") return unknown_type(model, type, "BPE");
  }
  if (!document.has_vocab)
    return data_loss("{}: model.vocab is missing or not an object of token: id", kFile);
  if (!document.has_merges) return data_loss("{}: model.merges is missing or not a list", kFile);
  HADAL_RETURN_IF_ERROR(model.unused(
      {"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix", "byte_fallback"}));
  HADAL_ASSIGN_OR_RETURN(out.ignore_merges, model.boolean("ignore_merges", false));
  out.vocab = std::move(document.vocab);
  out.merges = std::move(document.merges);
  return {};
}

// Returns the text of a token in tokenizer_config.json, which is a string or an object with a content.
std::string token_text(const Json* value) {
  if (value != nullptr && value->is_string()) return value->get<std::string>();
  if (value != nullptr && value->is_object() && value->contains("content") && (*value)["content"].is_string())
    return (*value)["content"].get<std::string>();
  return {};
}

}  // namespace

Result<TokenizerFile> parse_tokenizer_file(std::string_view json) {
  HADAL_ASSIGN_OR_RETURN(TokenizerDocument document, read_tokenizer_document(json, kFile));
  if (!document.rest.is_object()) return data_loss("{}: is not a JSON object", kFile);
  const Section root(document.rest, "");
  TokenizerFile out;
  HADAL_RETURN_IF_ERROR(parse_model(root.find("model"), document, out));
  HADAL_RETURN_IF_ERROR(parse_added_tokens(root.find("added_tokens"), out.added_tokens));
  HADAL_RETURN_IF_ERROR(for_each_component(root.find("normalizer"), "normalizer", "normalizers",
                                           [](const Section& section, const std::string& type) {
                                             return Result<void>(
                                                 unknown_type(section, type, "null, an empty Sequence"));
                                           }));
  HADAL_RETURN_IF_ERROR(parse_pre_tokenizer(root.find("pre_tokenizer"), out.pre_tokenizer));
  bool has_template = false;
  HADAL_RETURN_IF_ERROR(for_each_component(
      root.find("post_processor"), "post_processor", "processors",
      [&](const Section& section, const std::string& type) -> Result<void> {
        if (type == "ByteLevel") return {};  // moves only offsets, which are not used here
        if (type != "TemplateProcessing" || has_template)
          return unknown_type(section, type, "Sequence, ByteLevel, one TemplateProcessing");
        has_template = true;
        return parse_template(section, out);
      }));
  bool has_decoder = false;
  HADAL_RETURN_IF_ERROR(
      for_each_component(root.find("decoder"), "decoder", "decoders",
                         [&](const Section& section, const std::string& type) -> Result<void> {
                           if (type != "ByteLevel" || has_decoder)
                             return unknown_type(section, type, "one ByteLevel");
                           has_decoder = true;
                           return {};
                         }));
  if (!has_decoder) return unsupported("{}: decoder is missing (supported: ByteLevel)", kFile);
  return out;
}

Result<TokenizerConfig> parse_tokenizer_config(std::string_view json) {
  HADAL_ASSIGN_OR_RETURN(const Json document, read_json(json, kConfigFile));
  if (!document.is_object()) return data_loss("{}: is not a JSON object", kConfigFile);
  const Section root(document, "");
  TokenizerConfig out;
  const auto flag = [&](std::string_view key, std::optional<bool>& value) -> Result<void> {
    const Json* member = root.find(key);
    if (member == nullptr) return {};
    if (!member->is_boolean())
      return data_loss("{}: {} is {}; allowed is true or false", kConfigFile, key, shown_json(*member));
    value = member->get<bool>();
    return {};
  };
  HADAL_RETURN_IF_ERROR(flag("add_bos_token", out.add_bos_token));
  HADAL_RETURN_IF_ERROR(flag("add_eos_token", out.add_eos_token));
  out.bos_token = token_text(root.find("bos_token"));
  out.eos_token = token_text(root.find("eos_token"));
  if (const Json* chat = root.find("chat_template"); chat != nullptr && chat->is_string()) {
    out.chat_template = chat->get<std::string>();
  } else if (chat != nullptr && chat->is_array()) {
    for (const Json& item : *chat)
      if (item.is_object() && item.value("name", Json()) == Json("default") && item.contains("template") &&
          item["template"].is_string())
        out.chat_template = item["template"].get<std::string>();
  } else if (chat != nullptr) {
    return data_loss("{}: chat_template is {}; allowed is a string or a list of named templates", kConfigFile,
                     shown_json(*chat));
  }
  return out;
}

}  // namespace hadal
