// Chooses what answers the questions of `hadal eval`: a server, or an engine in this process. Only the main
// thread uses it.
#pragma once

#include <memory>

#include "base/result.h"
#include "cli/flags/flag_parser.h"
#include "cli/options.h"
#include "client/eval_asker.h"

namespace hadal::cli {

// Opens the server of --base-url, or else loads the model of --model-path. Flags that apply only to the other
// case are an error; further errors are those of loading.
Result<std::unique_ptr<client::EvalAsker>> open_asker(const ParsedFlags& flags,
                                                      const Environment& environment);

// Asks an engine in this process.
Result<std::unique_ptr<client::EvalAsker>> open_engine_asker(const ParsedFlags& flags,
                                                             const Environment& environment);

}  // namespace hadal::cli
