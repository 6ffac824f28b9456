#include "cli/model_source.h"

#include <algorithm>
#include <cstdint>

#include "cli/terminal.h"
#include "hub/transfer_rate.h"

namespace hadal::cli {
namespace {

// Calls `get` with callbacks that show progress and check for Ctrl-C.
template <typename Get>
Result<std::filesystem::path> with_progress(const std::string& model, const Get& get) {
  const InterruptGuard interrupt;
  Progress progress("fetching " + model);
  const hub::FetchCallbacks callbacks{
      .progress =
          [&](const hub::FetchProgress& at) {
            // The bar derives the time left from the bytes that this command has fetched. Bytes from an
            // earlier attempt may turn out to be wrong, and are then fetched again, so the difference may be
            // negative.
            progress.update(static_cast<size_t>(std::max<int64_t>(at.done_bytes - at.cached_bytes, 0)),
                            static_cast<size_t>(at.total_bytes - at.cached_bytes),
                            hub::describe_progress(at.done_bytes, at.total_bytes, at.bytes_per_s));
          },
      .is_cancelled = [&] { return interrupt.interrupted(); }};
  return get(callbacks);
}

}  // namespace

hub::FetchScope fetch_scope(const ParsedFlags& flags) {
  switch (flags.command()) {
    case Command::kTokenize:
    case Command::kDetokenize:
      return hub::FetchScope::kTokenizer;
    case Command::kInfo:
    case Command::kTuneGemm:
    case Command::kTuneMoe:
      return hub::FetchScope::kConfig;
    default:
      return flags.text_or("load-format", "auto") == "dummy" ? hub::FetchScope::kConfig
                                                             : hub::FetchScope::kWeights;
  }
}

Result<std::filesystem::path> find_model(const std::string& model_path, const ParsedFlags& flags,
                                         const Environment& environment) {
  hub::HubEnvironment hub = environment.hub;
  hub.offline |= flags.has("offline");
  return with_progress(model_path, [&](const hub::FetchCallbacks& callbacks) {
    return hub::locate_model(model_path, fetch_scope(flags), hub, callbacks);
  });
}

Result<std::filesystem::path> fetch_model(const hub::ModelId& id, const Environment& environment) {
  return with_progress(id.repository, [&](const hub::FetchCallbacks& callbacks) {
    return hub::fetch_model(id, hub::FetchScope::kWeights, environment.hub, callbacks);
  });
}

}  // namespace hadal::cli
