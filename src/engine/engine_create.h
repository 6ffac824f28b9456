// Declares how engine_create.cpp, which checks options, makes the engine itself (engine.cpp).
#pragma once

#include <memory>

#include "engine/engine.h"
#include "engine/step_executor.h"
#include "scheduler/plan_record.h"

namespace hadal {

// Starts the engine's threads. `options` are resolved: max_total_tokens is in whole pages, and no option is
// left at a 0 that stands for a default. recorder may be null.
std::unique_ptr<Engine> make_engine(std::unique_ptr<StepExecutor> executor, const ModelConfig& config,
                                    const EngineOptions& options, std::unique_ptr<PlanRecorder> recorder);

}  // namespace hadal
