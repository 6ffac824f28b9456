#include "cli/commands.h"

namespace hadal::cli {

Result<int> run_bench_serving(const ParsedFlags& /*flags*/, const Environment& /*environment*/) {
  return make_status(StatusCode::kUnsupported, "bench serving is not part of this build");
}

}  // namespace hadal::cli
