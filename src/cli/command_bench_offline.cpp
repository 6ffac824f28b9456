#include "cli/commands.h"

namespace hadal::cli {

Result<int> run_bench_offline(const ParsedFlags& /*flags*/, const Environment& /*environment*/) {
  return make_status(StatusCode::kUnsupported, "bench offline is not part of this build");
}

}  // namespace hadal::cli
