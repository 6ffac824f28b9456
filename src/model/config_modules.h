// Lists of module names in quantisation configs: which linears are quantised, and which are left as they
// were. Immutable once parsed; any thread may ask.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "base/result.h"

namespace hadal {

class ModuleList {
 public:
  static constexpr size_t kMaxEntries = 65536;  // published lists name each module of each layer at most
  static constexpr size_t kMaxPatterns = 32;    // "re:" entries: each is tried on each linear; lists have few
  static constexpr size_t kMaxEntryBytes = 512;
  static constexpr uint32_t kMaxSteps = 4000;  // of PCRE2's matcher: some 100 µs; sane patterns take hundreds

  // An entry "re:PATTERN" stands for the modules on whose name the regular expression matches from the start
  // on, as Python's re.match does it. Any other entry is a name, or a part of names in whole components:
  // "model.layers.0.self_attn" and "kv_b_proj" both stand for model.layers.0.self_attn.kv_b_proj, and
  // "mlp.gate" not for model.layers.0.mlp.gate_proj. Errors: an empty or overlong entry, too many, a pattern
  // that is no regular expression, or that takes more than kMaxSteps on a name of the usual kind.
  static Result<ModuleList> parse(std::vector<std::string> entries);

  // `module` without ".weight". Answers of lists with patterns are kept: each pattern is tried on a name
  // once. Throws hadal::Error, which names both, where a pattern takes more than kMaxSteps on the name.
  bool contains(std::string_view module) const;

  bool empty() const { return entries_.empty(); }
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  struct Compiled;

  std::vector<std::string> entries_;
  std::shared_ptr<const Compiled> compiled_;  // null: no entries
};

}  // namespace hadal
