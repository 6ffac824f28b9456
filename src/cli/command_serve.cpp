// `hadal serve`: the HTTP server.
#include "cli/commands.h"

namespace hadal::cli {

Result<int> run_serve(const ParsedFlags& /*flags*/, const Environment& /*environment*/) {
  return make_status(StatusCode::kUnsupported, "the server is not part of this build");
}

}  // namespace hadal::cli
