// Chooses who answers the questions of `hadal eval`. Main thread.
#pragma once

#include <memory>

#include "base/result.h"
#include "cli/flag_parser.h"
#include "cli/options.h"
#include "client/eval_asker.h"

namespace hadal::cli {

// With --base-url that server answers, and otherwise the model of --model-path, which is loaded. Errors:
// flags that apply to the other case alone; those of loading.
Result<std::unique_ptr<client::EvalAsker>> open_asker(const ParsedFlags& flags,
                                                      const Environment& environment);

// Asks an engine in this process.
Result<std::unique_ptr<client::EvalAsker>> open_engine_asker(const ParsedFlags& flags,
                                                             const Environment& environment);

}  // namespace hadal::cli
