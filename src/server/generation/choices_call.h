// Carries out one request of a client, whatever its dialect: compiles the grammars of its choices, starts the
// choices in turns, and passes on what they generate. Derived classes write the answer in their form. Only
// the I/O thread uses it. The callbacks of its generations keep it alive.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>

#include "server/generation/generation.h"
#include "server/generation/grammar_task.h"
#include "server/generation/request_registry.h"
#include "server/generation/sse.h"
#include "server/request_log.h"
#include "server/server_context.h"

namespace hadal::server {

class ChoicesCall : public std::enable_shared_from_this<ChoicesCall> {
 public:
  virtual ~ChoicesCall() = default;
  ChoicesCall(const ChoicesCall&) = delete;
  ChoicesCall& operator=(const ChoicesCall&) = delete;

  // Answers the exchange of the stream, including every error in its style. An abort of a choice that has not
  // started takes effect as soon as the choice starts, so its client gets the usual answer to an abort.
  void run();

 protected:
  ChoicesCall(ServerContext& context, std::shared_ptr<SseStream> stream);

  struct Choice {
    GenerationRequest& request;
    std::shared_ptr<const GrammarSpec>& grammar;  // null: none
  };
  virtual size_t num_choices() const = 0;
  // Returns a choice that has not been started. Starting a choice moves its request away.
  virtual Choice choice(size_t i) = 0;
  // Returns the places of all choices in the engine's queue.
  virtual QueuePlaces& places() = 0;
  // Prepares for the output of a choice. Choices are started in their order.
  virtual void before_start(size_t i, const GenerationRequest& request) = 0;
  virtual void on_delta(size_t i, GenerationDelta delta) = 0;

  ServerContext& context_;
  const std::shared_ptr<SseStream> stream_;

 private:
  template <typename Work>
  void guarded(Work work);
  void on_grammars(Result<CompiledGrammars> grammars);
  bool start_choice(size_t i);

  IoThread& io_;
  std::string grammar_field_;  // of the first grammar, for errors
  CompiledGrammars grammars_;  // of the choices that have not been started, and the memory of all
  std::optional<WaitingChoices> waiting_;
  LogRoom log_room_;
};

}  // namespace hadal::server
