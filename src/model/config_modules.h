// ModuleList lists module names in quantisation configs; the lists say which linears are quantised. It is
// immutable once parsed; any thread may call it.
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
  // This limits the number of "re:" entries, because each one is tried on each linear. Published lists have
  // few.
  static constexpr size_t kMaxPatterns = 32;
  static constexpr size_t kMaxEntryBytes = 512;
  // This limits the steps of PCRE2's matcher to some 100 µs; reasonable patterns need hundreds of steps.
  static constexpr uint32_t kMaxSteps = 4000;

  // An entry "re:PATTERN" selects the modules whose names the regular expression matches from the start, like
  // Python's re.match. Any other entry is a name, or a part of a name in whole components:
  // "model.layers.0.self_attn" and "kv_b_proj" both select model.layers.0.self_attn.kv_b_proj, but "mlp.gate"
  // does not select model.layers.0.mlp.gate_proj. The errors are an empty or overlong entry, too many
  // entries, an invalid regular expression, or one that needs more than kMaxSteps on a usual name.
  static Result<ModuleList> parse(std::vector<std::string> entries);

  // `module` is a name without ".weight". For lists with patterns the answers are cached, so each pattern is
  // tried once on a name. If a pattern needs more than kMaxSteps on the name, it throws hadal::Error, which
  // names the pattern and the module.
  bool contains(std::string_view module) const;

  bool empty() const { return entries_.empty(); }
  const std::vector<std::string>& entries() const { return entries_; }

 private:
  struct Compiled;

  std::vector<std::string> entries_;
  std::shared_ptr<const Compiled> compiled_;  // null: no entries
};

}  // namespace hadal
