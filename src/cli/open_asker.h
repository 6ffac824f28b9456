// Chooses whether a server or an engine in this process answers the questions of `hadal eval`. Only the main
// thread uses it.
#pragma once

#include <memory>

#include "base/result.h"
#include "cli/flags/flag_parser.h"
#include "cli/options.h"
#include "client/eval_asker.h"

namespace hadal::cli {

// Opens the server of --base-url, or else loads the model of --model-path. A flag that applies only to the
// case not chosen is an error; further errors are those of loading.
Result<std::unique_ptr<client::EvalAsker>> open_asker(const ParsedFlags& flags,
                                                      const Environment& environment);

// Loads the model and returns an asker that uses an engine in this process.
Result<std::unique_ptr<client::EvalAsker>> open_engine_asker(const ParsedFlags& flags,
                                                             const Environment& environment);

}  // namespace hadal::cli
