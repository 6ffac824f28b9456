// Converts text to token ids and back: the byte-level BPE pipeline that a checkpoint's tokenizer.json
// describes (added tokens, splits, digits, byte-level alphabet, merges, post-processor), read from the file
// and never chosen by name. Ids equal those of the reference library `tokenizers`. A tokenizer is immutable
// after load: any number of threads may call the const members at once, without a lock.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"
#include "text/chat/marked_text.h"

namespace hadal {

class Tokenizer {
 public:
  // Loads `<dir>/tokenizer.json` and, if it exists, `<dir>/tokenizer_config.json` (it may override whether
  // bos and eos are added, names both and contains the chat template). If the path is a file, that is the
  // tokenizer.json itself, with its config beside it. The errors are kNotFound (no tokenizer.json), kDataLoss
  // (not JSON, truncated, inconsistent), and kUnsupported (a component that is not implemented; the message
  // names it and what is supported).
  static Result<std::unique_ptr<Tokenizer>> load(const std::filesystem::path& dir_or_file);

  // Makes a tokenizer from the texts of the files; an empty config means that there is none.
  static Result<std::unique_ptr<Tokenizer>> from_json(std::string_view tokenizer_json,
                                                      std::string_view tokenizer_config_json = {});

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Returns the ids of `utf8`. Text of added tokens ("<｜User｜>", "<think>", …) becomes their single id
  // wherever it occurs. `add_special_tokens` adds the tokens that the model's own tokenizer adds around a
  // prompt (bos, for the DeepSeek family). A rendered chat (text/chat/chat_template.h) begins with bos
  // already, so encode it with false. Bytes that are not UTF-8 count as U+FFFD, one per maximal invalid
  // sequence (Unicode 15, section 3.9, U+FFFD substitution of maximal subparts: the rule of Python's
  // decode(errors="replace")). Time is O(n log n) in the length of the longest word and linear in everything
  // else. Throws CancelledError (base/cancel.h), and PatternLimitError (text/tokenizer/splitter.h) if a
  // pattern of the file takes too long on the text. The latter can happen only if there is no linear splitter
  // for the pattern.
  //
  // `max_tokens` bounds the time, whatever the text: only the first (max_tokens + 1) · longest_token_bytes()
  // bytes are read, which are certainly more than max_tokens tokens. Merging stops after the word with which
  // the ids exceed max_tokens. So a text of at most max_tokens tokens gets all of its ids, and of any other
  // text the ids of its beginning are returned, which are more than max_tokens.
  //
  // Added tokens that touch one of the ranges `literal` (in order, not overlapping, at borders of characters)
  // are not recognised: the text in a range is encoded as ordinary text, together with the text beside it.
  std::vector<int32_t> encode(std::string_view utf8, bool add_special_tokens = true,
                              size_t max_tokens = std::numeric_limits<size_t>::max(),
                              std::span<const TextRange> literal = {}) const;

  // Returns the most bytes of text that one id can represent, so b bytes of text are at least b /
  // longest_token_bytes() tokens. 0 means any number of bytes, which occurs if an added token includes the
  // white space around it, or if the vocabulary lacks a byte of UTF-8.
  size_t longest_token_bytes() const;

  // Returns the text of `ids`. Bytes that do not form UTF-8 become U+FFFD. `skip_special_tokens` drops tokens
  // that the file marks special and no others. Ids without a token (a model's vocabulary is often padded)
  // have no text.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  // Returns the raw bytes that a token represents, which may be only a part of a UTF-8 character. They are
  // empty for an id without a token. The view lives as long as the tokenizer.
  std::string_view token_bytes(int32_t id) const;

  // Returns the token in the file's notation (byte-level alphabet: "Ġthe"), empty for an id without a token.
  std::string id_to_token(int32_t id) const;
  // Returns the id of a token in the file's notation, including added tokens.
  std::optional<int32_t> token_to_id(std::string_view token) const;

  bool is_special(int32_t id) const;
  // Returns true if the file's added_tokens list the id. Such a token is found in text before any other step,
  // special or not.
  bool is_added(int32_t id) const;
  // Returns one more than the largest id that has a token.
  int vocab_size() const;

  // These return the tokens that tokenizer_config.json names; without it, the family's own strings if the
  // vocabulary has them.
  std::optional<int32_t> bos_id() const;
  std::optional<int32_t> eos_id() const;

  // Returns tokenizer_config.json's chat_template (or chat_template.jinja beside it); empty if there is none.
  // From a list of named templates, the one named "default" is returned.
  const std::string& chat_template() const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal
