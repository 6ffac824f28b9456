#include "cli/model_source.h"

#include <algorithm>
#include <cstdint>
#include <string_view>

#include "base/mapped_file.h"
#include "cli/session.h"
#include "cli/terminal.h"
#include "hub/transfer_rate.h"
#include "model/config.h"
#include "model/other_models.h"

namespace hadal::cli {
namespace {

namespace fs = std::filesystem;

using ConfigCheck = Result<void> (*)(std::string_view config_json, std::string_view source);

Result<void> check_config(std::string_view config_json, std::string_view source) {
  HADAL_RETURN_IF_ERROR(refuse_other_model(config_json, source));
  HADAL_ASSIGN_OR_RETURN([[maybe_unused]] const ModelConfig config, parse_model_config(config_json, source));
  return {};
}

// Calls `get` with callbacks that show progress, check for Ctrl-C, and check config.json before weights are
// fetched; `check` may be null.
template <typename Get>
Result<fs::path> with_progress(const std::string& model, ConfigCheck check, const Get& get) {
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
      .is_cancelled = [&] { return interrupt.interrupted(); },
      .check_before_weights = [&](const fs::path& snapshot) -> Result<void> {
        if (check == nullptr) return {};
        const fs::path path = snapshot / "config.json";
        HADAL_ASSIGN_OR_RETURN(const std::string text, read_text_file(path, kMaxConfigBytes));
        const Result<void> checked = check(text, path.native());
        if (!checked.ok()) return blame_file(checked.status());
        return {};
      }};
  return get(callbacks);
}

hub::HubEnvironment hub_settings(const ParsedFlags& flags, const Environment& environment) {
  hub::HubEnvironment hub = environment.hub;
  hub.offline |= flags.has("offline");
  return hub;
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

Result<fs::path> find_model(const std::string& model_path, const ParsedFlags& flags,
                            const Environment& environment) {
  const ConfigCheck check = flags.has("json-model-override-args") ? nullptr : &check_config;
  return with_progress(model_path, check, [&](const hub::FetchCallbacks& callbacks) {
    return hub::locate_model(model_path, fetch_scope(flags), hub_settings(flags, environment), callbacks);
  });
}

Result<fs::path> find_draft(const std::string& path, hub::FetchScope scope, const ParsedFlags& flags,
                            const Environment& environment) {
  return with_progress(path, &refuse_other_model, [&](const hub::FetchCallbacks& callbacks) {
    return hub::locate_model(path, scope, hub_settings(flags, environment), callbacks);
  });
}

Result<fs::path> fetch_model(const hub::ModelId& id, const Environment& environment) {
  return with_progress(id.repository, &check_config, [&](const hub::FetchCallbacks& callbacks) {
    return hub::fetch_model(id, hub::FetchScope::kWeights, environment.hub, callbacks);
  });
}

}  // namespace hadal::cli
