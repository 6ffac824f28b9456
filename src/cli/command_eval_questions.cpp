#include "cli/commands.h"

namespace hadal::cli {

Result<int> run_eval_gsm8k(const ParsedFlags& /*flags*/, const Environment& /*environment*/) {
  return make_status(StatusCode::kUnsupported, "eval gsm8k is not part of this build");
}

Result<int> run_eval_gpqa(const ParsedFlags& /*flags*/, const Environment& /*environment*/) {
  return make_status(StatusCode::kUnsupported, "eval gpqa is not part of this build");
}

}  // namespace hadal::cli
