#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <unordered_map>

#include "base/cancel.h"
#include "base/mapped_file.h"
#include "text/tokenizer/added_tokens.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/byte_alphabet.h"
#include "text/tokenizer/pre_tokenizer.h"
#include "text/tokenizer/tokenizer_file.h"
#include "text/tokenizer/unicode_classes.h"
#include "text/utf8.h"

namespace hadal {

namespace {

// Ids are indices into tables; a limit far above any vocabulary keeps files from exhausting memory.
constexpr int64_t kMaxId = (int64_t{1} << 24) - 1;

// These are the family's own strings, used by checkpoints without a tokenizer_config.json.
constexpr std::string_view kDefaultBos = "<｜begin▁of▁sentence｜>";
constexpr std::string_view kDefaultEos = "<｜end▁of▁sentence｜>";

// Appends the pieces of `text` in order. Ordinary text on both sides of a range's border is one piece, so
// that a word may extend across the border.
void split_around(const AddedTokenMatcher& added, std::string_view text, std::span<const TextRange> literal,
                  std::vector<AddedTokenMatcher::Piece>& out) {
  if (literal.empty()) return added.split(text, out);
  std::vector<AddedTokenMatcher::Piece> pieces;
  size_t at = 0;
  for (const TextRange& range : literal) {
    const size_t begin = std::min(range.begin, text.size());  // a text that was cut may end before it
    const size_t end = std::min(range.end, text.size());
    added.split(text.substr(at, begin - at), pieces);
    if (begin < end) pieces.push_back({text.substr(begin, end - begin), -1});
    at = end;
  }
  added.split(text.substr(at), pieces);
  for (const AddedTokenMatcher::Piece& piece : pieces) {
    if (piece.id < 0 && !out.empty() && out.back().id < 0) {
      const std::string_view before = out.back().text;
      out.back().text = {before.data(), before.size() + piece.text.size()};  // they are neighbours in `text`
    } else {
      out.push_back(piece);
    }
  }
}

// Returns replace_invalid_utf8(text), and sets `moved` to the places of the ranges in the result.
std::string repair(std::string_view text, std::span<const TextRange> ranges, std::vector<TextRange>& moved) {
  std::string out;
  size_t at = 0;
  const auto append_until = [&](size_t end) {
    end = std::min(end, text.size());
    out += replace_invalid_utf8(text.substr(at, end - at));
    at = end;
    return out.size();
  };
  for (const TextRange& range : ranges) {
    const size_t begin = append_until(range.begin);
    moved.push_back({begin, append_until(range.end)});
  }
  append_until(text.size());
  return out;
}

enum TokenFlags : uint8_t { kModelToken = 1, kAddedToken = 2, kSpecialToken = 4 };

}  // namespace

struct Tokenizer::Impl {
  CodePointTable classes = make_unicode_classes();
  ByteAlphabet alphabet;
  ByteStringMap ids_by_text;     // every token in the file's notation
  std::vector<uint8_t> flags;    // [vocab_size], TokenFlags; 0: no token
  std::vector<uint32_t> begins;  // [vocab_size + 1], where each token's bytes begin in `bytes`
  std::string bytes;             // the bytes that the tokens represent, by id
  std::unique_ptr<Bpe> bpe;
  std::unique_ptr<AddedTokenMatcher> added;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::vector<int32_t> prefix;  // ids that add_special_tokens adds before …
  std::vector<int32_t> suffix;  // … and after a text
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::string chat_template;
  size_t longest_token_bytes = 0;  // see Tokenizer::longest_token_bytes

  bool has_token(int32_t id) const {
    return id >= 0 && static_cast<size_t>(id) < flags.size() && flags[id] != 0;
  }
  std::string_view token_bytes(int32_t id) const {
    return has_token(id) ? std::string_view(bytes).substr(begins[id], begins[id + 1] - begins[id])
                         : std::string_view();
  }
  std::optional<int32_t> find(std::string_view text) const {
    const int32_t id = ids_by_text.find(text);
    return id < 0 ? std::nullopt : std::optional(id);
  }

  struct VocabularySize {
    size_t num_ids = 0;
    size_t num_bytes = 0;  // of all tokens in the file's notation
  };
  struct TokenTexts {
    std::vector<std::optional<std::string>> merged;  // [num_ids], bytes of tokens that merging can produce
    // [num_ids], tokens that are text and not in the alphabet; they point into the file
    std::vector<std::string_view> verbatim;
  };
  // build calls the four functions above it, in this order.
  static Result<VocabularySize> size_of(const TokenizerFile& file);
  Result<TokenTexts> read_tokens(const TokenizerFile& file, const VocabularySize& size);
  Result<void> read_merges(const TokenizerFile& file, const TokenTexts& texts);
  void join_bytes(const TokenTexts& texts, const VocabularySize& size);
  Result<void> build(TokenizerFile& file);
  Result<void> apply(const TokenizerConfig& config);
  size_t find_longest_token(const std::vector<AddedTokenSpec>& added_tokens) const;
  Result<int32_t> named_token(std::string_view text, std::string_view what) const;
};

Result<Tokenizer::Impl::VocabularySize> Tokenizer::Impl::size_of(const TokenizerFile& file) {
  int64_t largest = -1;
  size_t num_bytes = 0;
  for (const auto& [text, id] : file.vocab) {
    if (id < 0 || id > kMaxId)
      return data_loss("tokenizer.json: model.vocab[\"{}\"] = {}; allowed are ids of 0 to {}", text, id,
                       kMaxId);
    largest = std::max(largest, id);
    num_bytes += text.size();
  }
  for (const AddedTokenSpec& token : file.added_tokens) {
    if (token.id > kMaxId)
      return data_loss("tokenizer.json: added token \"{}\" has id {}; allowed are 0 to {}", token.content,
                       token.id, kMaxId);
    largest = std::max<int64_t>(largest, token.id);
    num_bytes += token.content.size();
  }
  if (largest < 0) return data_loss("tokenizer.json: the vocabulary is empty");
  return VocabularySize{.num_ids = static_cast<size_t>(largest + 1), .num_bytes = num_bytes};
}

Result<Tokenizer::Impl::TokenTexts> Tokenizer::Impl::read_tokens(const TokenizerFile& file,
                                                                 const VocabularySize& size) {
  flags.assign(size.num_ids, 0);
  ids_by_text.reserve(file.vocab.size() + file.added_tokens.size(), size.num_bytes);
  TokenTexts texts;
  texts.merged.resize(size.num_ids);
  texts.verbatim.resize(size.num_ids);
  for (const auto& [text, wide_id] : file.vocab) {
    const auto id = static_cast<int32_t>(wide_id);
    if (flags[id] != 0)
      return data_loss("tokenizer.json: model.vocab gives id {} to more than one token", id);
    if (!ids_by_text.insert(text, id)) return data_loss("tokenizer.json: model.vocab has \"{}\" twice", text);
    flags[id] = kModelToken;
    texts.merged[id] = alphabet.to_bytes(text);
    if (!texts.merged[id]) texts.verbatim[id] = text;
  }
  for (const AddedTokenSpec& token : file.added_tokens) {
    const auto known = find(token.content);
    if (known && *known != token.id)
      return data_loss("tokenizer.json: added token \"{}\" has id {}, but the same text has id {} already",
                       token.content, token.id, *known);
    if (!known && flags[token.id] != 0)
      return data_loss("tokenizer.json: added token \"{}\" has id {}, which is another token's",
                       token.content, token.id);
    if (!known) ids_by_text.insert(token.content, token.id);
    flags[token.id] |= kAddedToken | (token.special ? kSpecialToken : 0);
    texts.verbatim[token.id] = token.content;
  }
  return texts;
}

Result<void> Tokenizer::Impl::read_merges(const TokenizerFile& file, const TokenTexts& texts) {
  std::vector<std::pair<std::pair<int32_t, int32_t>, int32_t>> merges;
  merges.reserve(file.merges.size());
  std::string merged;
  for (size_t i = 0; i < file.merges.size(); ++i) {
    const auto& [left, right] = file.merges[i];
    merged.assign(left).append(right);
    const std::string* unknown = nullptr;
    const auto model_id = [&](const std::string& text) {
      const int32_t id = ids_by_text.find(text);
      if (id < 0 || (flags[id] & kModelToken) == 0) unknown = unknown == nullptr ? &text : unknown;
      return id;
    };
    const int32_t left_id = model_id(left);
    const int32_t right_id = model_id(right);
    merges.push_back({{left_id, right_id}, model_id(merged)});
    if (unknown != nullptr)
      return data_loss("tokenizer.json: model.merges[{}] needs the token \"{}\", which is not in model.vocab",
                       i, *unknown);
  }
  bpe = std::make_unique<Bpe>(texts.merged, merges, file.ignore_merges);
  return {};
}

void Tokenizer::Impl::join_bytes(const TokenTexts& texts, const VocabularySize& size) {
  begins.reserve(size.num_ids + 1);
  bytes.reserve(size.num_bytes);
  for (size_t id = 0; id < size.num_ids; ++id) {
    begins.push_back(static_cast<uint32_t>(bytes.size()));
    if (!texts.verbatim[id].empty())
      bytes.append(texts.verbatim[id]);
    else if (texts.merged[id])
      bytes.append(*texts.merged[id]);
  }
  begins.push_back(static_cast<uint32_t>(bytes.size()));
}

Result<void> Tokenizer::Impl::build(TokenizerFile& file) {
  HADAL_ASSIGN_OR_RETURN(const VocabularySize size, size_of(file));
  HADAL_ASSIGN_OR_RETURN(const TokenTexts texts, read_tokens(file, size));
  HADAL_RETURN_IF_ERROR(read_merges(file, texts));
  join_bytes(texts, size);
  longest_token_bytes = find_longest_token(file.added_tokens);

  added = std::make_unique<AddedTokenMatcher>(file.added_tokens, classes);
  HADAL_ASSIGN_OR_RETURN(pre_tokenizer, PreTokenizer::make(file.pre_tokenizer, classes));
  for (const auto& [names, ids] :
       {std::pair(&file.template_prefix, &prefix), {&file.template_suffix, &suffix}})
    for (const std::string& name : *names) {
      HADAL_ASSIGN_OR_RETURN(const int32_t id, named_token(name, "tokenizer.json: post_processor"));
      ids->push_back(id);
    }
  return {};
}

size_t Tokenizer::Impl::find_longest_token(const std::vector<AddedTokenSpec>& added_tokens) const {
  for (const AddedTokenSpec& token : added_tokens)
    if (token.lstrip || token.rstrip) return 0;
  // Bytes without a token are dropped, so the result is 0 unless every byte that occurs in UTF-8 has a token.
  // The bytes 0xC0, 0xC1 and from 0xF5 on do not occur: a sequence with one of them becomes U+FFFD, which is
  // not shorter.
  for (int byte = 0; byte < 256; ++byte) {
    const bool in_utf8 = byte != 0xC0 && byte != 0xC1 && byte < 0xF5;
    if (in_utf8 && !bpe->has_byte(static_cast<unsigned char>(byte))) return 0;
  }
  size_t longest = 0;
  for (size_t id = 0; id < flags.size(); ++id)
    longest = std::max<size_t>(longest, begins[id + 1] - begins[id]);
  return longest;
}

Result<int32_t> Tokenizer::Impl::named_token(std::string_view text, std::string_view what) const {
  const auto id = find(text);
  if (!id) return data_loss("{} names the token \"{}\", which is not in the vocabulary", what, text);
  return *id;
}

Result<void> Tokenizer::Impl::apply(const TokenizerConfig& config) {
  const auto resolve = [&](const std::string& text, std::string_view otherwise, std::string_view key,
                           std::optional<int32_t>& id) -> Result<void> {
    if (text.empty()) {
      id = find(otherwise);
      return {};
    }
    HADAL_ASSIGN_OR_RETURN(id, named_token(text, fmt::format("tokenizer_config.json: {}", key)));
    return {};
  };
  HADAL_RETURN_IF_ERROR(resolve(config.bos_token, kDefaultBos, "bos_token", bos));
  HADAL_RETURN_IF_ERROR(resolve(config.eos_token, kDefaultEos, "eos_token", eos));
  // The config's setting of whether bos and eos are added replaces the post-processor's setting.
  const auto replace = [](const std::optional<bool>& add, const std::optional<int32_t>& id,
                          std::string_view key, std::vector<int32_t>& ids) -> Result<void> {
    if (!add) return {};
    ids.clear();
    if (!*add) return {};
    if (!id) return data_loss("tokenizer_config.json: add_{0}_token is true, but there is no {0}_token", key);
    ids.push_back(*id);
    return {};
  };
  HADAL_RETURN_IF_ERROR(replace(config.add_bos_token, bos, "bos", prefix));
  HADAL_RETURN_IF_ERROR(replace(config.add_eos_token, eos, "eos", suffix));
  chat_template = config.chat_template;
  return {};
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

Result<std::unique_ptr<Tokenizer>> Tokenizer::from_json(std::string_view tokenizer_json,
                                                        std::string_view tokenizer_config_json) {
  HADAL_ASSIGN_OR_RETURN(TokenizerFile file, parse_tokenizer_file(tokenizer_json));
  TokenizerConfig config;
  if (!tokenizer_config_json.empty()) {
    HADAL_ASSIGN_OR_RETURN(config, parse_tokenizer_config(tokenizer_config_json));
  }
  auto impl = std::make_unique<Impl>();
  HADAL_RETURN_IF_ERROR(impl->build(file));
  HADAL_RETURN_IF_ERROR(impl->apply(config));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

Result<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::filesystem::path& dir_or_file) {
  std::error_code ignored;
  const bool is_dir = std::filesystem::is_directory(dir_or_file, ignored);
  const auto file = is_dir ? dir_or_file / "tokenizer.json" : dir_or_file;
  const auto dir = is_dir ? dir_or_file : dir_or_file.parent_path();
  HADAL_ASSIGN_OR_RETURN(const std::string json, read_text_file(file));
  std::string config_json;
  if (std::filesystem::exists(dir / "tokenizer_config.json", ignored)) {
    HADAL_ASSIGN_OR_RETURN(config_json, read_text_file(dir / "tokenizer_config.json"));
  }
  auto tokenizer = from_json(json, config_json);
  if (!tokenizer.ok())  // messages begin with the file's name, so add the directory
    return Status{tokenizer.status().code,
                  fmt::format("{}: {}", dir.empty() ? "." : dir.string(), tokenizer.status().message)};
  // Newer checkpoints keep the chat template in a separate file, which then takes precedence.
  if (std::filesystem::exists(dir / "chat_template.jinja", ignored)) {
    HADAL_ASSIGN_OR_RETURN((*tokenizer)->impl_->chat_template, read_text_file(dir / "chat_template.jinja"));
  }
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view utf8, bool add_special_tokens, size_t max_tokens,
                                       std::span<const TextRange> literal) const {
  const size_t longest = impl_->longest_token_bytes;
  if (longest != 0 && utf8.size() / longest > max_tokens) {
    size_t end = (max_tokens + 1) * longest;
    while (end < utf8.size() && (static_cast<unsigned char>(utf8[end]) & 0xC0U) == 0x80U) ++end;
    utf8 = utf8.substr(0, end);
  }
  std::string repaired;
  std::vector<TextRange> moved;
  if (!is_valid_utf8(utf8)) {
    repaired = repair(utf8, literal, moved);
    utf8 = repaired;
    literal = moved;
  }
  std::vector<int32_t> ids;
  ids.reserve(std::min(utf8.size() / 3, max_tokens) + impl_->prefix.size() + impl_->suffix.size());
  if (add_special_tokens) ids = impl_->prefix;
  SplitBudget budget(utf8.size());
  std::vector<AddedTokenMatcher::Piece> pieces;
  split_around(*impl_->added, utf8, literal, pieces);
  uint32_t num_words = 0;
  for (const auto& piece : pieces) {
    if (ids.size() > max_tokens) return ids;
    if (piece.id >= 0)
      ids.push_back(piece.id);
    else
      impl_->pre_tokenizer->for_each_word(piece.text, budget, [&](std::string_view word) {
        if (++num_words % 256 == 0) check_cancelled();
        if (ids.size() <= max_tokens) impl_->bpe->encode(word, ids);
      });
  }
  if (add_special_tokens) ids.insert(ids.end(), impl_->suffix.begin(), impl_->suffix.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::string text;
  for (const int32_t id : ids)
    if (!skip_special_tokens || !is_special(id)) text.append(token_bytes(id));
  return is_valid_utf8(text) ? text : replace_invalid_utf8(text);
}

std::string_view Tokenizer::token_bytes(int32_t id) const {
  return impl_->token_bytes(id);
}

std::string Tokenizer::id_to_token(int32_t id) const {
  if (!impl_->has_token(id)) return {};
  const std::string_view bytes = token_bytes(id);
  // The file has added tokens as plain text and all other tokens in the byte-level alphabet.
  std::string token = impl_->alphabet.to_token(bytes);
  return impl_->find(token) == id ? token : std::string(bytes);
}

std::optional<int32_t> Tokenizer::token_to_id(std::string_view token) const {
  return impl_->find(token);
}

bool Tokenizer::is_special(int32_t id) const {
  return impl_->has_token(id) && (impl_->flags[id] & kSpecialToken) != 0;
}

bool Tokenizer::is_added(int32_t id) const {
  return impl_->has_token(id) && (impl_->flags[id] & kAddedToken) != 0;
}

size_t Tokenizer::longest_token_bytes() const {
  return impl_->longest_token_bytes;
}

int Tokenizer::vocab_size() const {
  return static_cast<int>(impl_->flags.size());
}

std::optional<int32_t> Tokenizer::bos_id() const {
  return impl_->bos;
}

std::optional<int32_t> Tokenizer::eos_id() const {
  return impl_->eos;
}

const std::string& Tokenizer::chat_template() const {
  return impl_->chat_template;
}

}  // namespace hadal
