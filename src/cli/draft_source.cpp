#include "cli/draft_source.h"

#include <system_error>

#include "base/log.h"
#include "cli/model_source.h"
#include "hub/fetch.h"
#include "model/draft_layer.h"

namespace hadal::cli {
namespace {

namespace fs = std::filesystem;

Result<DraftRequest> request_of(const ParsedFlags& flags, const ModelOptions& options) {
  DraftRequest request{.format = options.load_format, .model_quantization = options.quantization};
  if (const auto word = flags.text("speculative-draft-load-format"))
    request.format = *word == "dummy" ? LoadFormat::kDummy : LoadFormat::kAuto;
  if (const auto word = flags.text("speculative-draft-model-quantization")) {
    request.quantization = LoadQuantization::kNone;
    if (*word != "unquant") {
      HADAL_ASSIGN_OR_RETURN(request.quantization, parse_load_quantization(*word));
    }
  }
  return request;
}

}  // namespace

Result<std::optional<DraftLayer>> find_draft_layer(const ParsedFlags& flags, const Environment& environment,
                                                   const ModelOptions& options, const fs::path& model_dir,
                                                   const ModelConfig& config) {
  std::optional<DraftLayer> own;
  const auto path = flags.text("speculative-draft-model-path");
  if (!path) return own;
  HADAL_ASSIGN_OR_RETURN(DraftRequest request, request_of(flags, options));
  const auto scope =
      request.format == LoadFormat::kDummy ? hub::FetchScope::kConfig : hub::FetchScope::kWeights;
  const auto located = find_draft(*path, scope, flags, environment);
  std::error_code ignored;
  if (!located.ok()) {
    const bool is_id = !fs::exists(*path, ignored) && hub::parse_model_id(*path);
    if (!is_id || located.status().code == StatusCode::kCancelled) return about_draft(located.status());
    log_warning("draft model not read id={} reason=\"{}\" instead=\"the model's own NextN layer is used\"",
                *path, located.status().message);
    return own;
  }
  const bool is_model = fs::equivalent(*located, model_dir, ignored);
  if (is_model && !flags.has("speculative-draft-load-format") &&
      !flags.has("speculative-draft-model-quantization"))
    return own;
  request.dir = *located;
  HADAL_ASSIGN_OR_RETURN(DraftLayer draft, read_draft_layer(request));
  HADAL_RETURN_IF_ERROR(check_draft_fits(draft, config));
  return std::optional(std::move(draft));
}

}  // namespace hadal::cli
