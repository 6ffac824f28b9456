// Holds the sampling settings of `hadal chat`, which /set changes. Only the main thread uses it.
#pragma once

#include <map>
#include <string>
#include <string_view>

#include "base/result.h"
#include "cli/options.h"

namespace hadal::cli {

class ChatSettings {
 public:
  // `flags` and `file` must outlive this object.
  static Result<ChatSettings> make(const ParsedFlags& flags, const GenerationConfig& file,
                                   int64_t vocab_size);

  // Applies the text after /set: "NAME VALUE" or "NAME=VALUE" sets a flag of the group Sampling, and "NAME"
  // alone resets the flag to its value at the start, or turns a switch on. An error changes nothing and names
  // the flag, its value and what is allowed. Returns one line with the value in force now: "temperature 0.6".
  Result<std::string> set(std::string_view text);

  const SamplingOptions& sampling() const { return sampling_; }
  // Shows the values in force, one per line.
  std::string describe() const;

 private:
  ChatSettings(const ParsedFlags& flags, const GenerationConfig& file, int64_t vocab_size)
      : flags_(&flags), file_(&file), vocab_size_(vocab_size) {}
  struct Row {
    std::string_view name;  // of the flag
    std::string value;
  };
  std::vector<Row> rows() const;  // the values in force; `stop` may have several
  // Returns one line with the flag's present value.
  std::string describe(const Flag& flag) const;
  Result<SamplingOptions> resolve(const std::map<std::string, std::string>& changes) const;

  const ParsedFlags* flags_;
  const GenerationConfig* file_;
  int64_t vocab_size_;
  std::map<std::string, std::string> changes_;  // by name of the flag: the word "--name=value"
  SamplingOptions sampling_;
};

}  // namespace hadal::cli
