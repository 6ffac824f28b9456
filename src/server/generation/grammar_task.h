// Compiles the grammars of a request on the background threads, and answers on the request's I/O thread.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "base/result.h"
#include "server/admission/request_memory.h"
#include "server/http/http.h"
#include "server/server_context.h"
#include "text/grammar/grammar.h"

namespace hadal::server {

using GrammarSpecs = std::vector<std::shared_ptr<const GrammarSpec>>;

struct CompiledGrammars {
  std::vector<std::shared_ptr<const CompiledGrammar>> of_specs;  // entry i is null if specs[i] is
  // The different grammars, and the vocabularies that they need. Such a vocabulary is counted once for all
  // requests that use it.
  MemoryCharge memory;
};

// Compiles `specs`. A spec that occurs several times (the same object) is compiled and counted once.
// `done` is called on `io`: immediately if nothing has to be compiled, otherwise later. Clients take turns,
// and a client's grammars are compiled one after another. The errors are that of the first failing spec (see
// GrammarCompiler::compile); kInvalidArgument without a compiler; kResourceExhausted if too many tasks are
// waiting, of all clients or of `client` (HttpRequest::client), or if --max-request-memory has no room; and
// kCancelled if the background threads stop before all are compiled, which cancels the running compilation.
//
// Returns a function that says, on `io`, that the result is not needed any more. From then on `done` is not
// called, and work that has not begun is skipped. Work that waits for its turn is destroyed with everything
// that it owns, `done` included, before that function returns.
//
// Memory is counted from the beginning: for each grammar that waits an estimate from its text, during its
// compilation also GrammarMemoryLimits::compile_bytes, and then its size. A vocabulary is counted before it
// is made.
std::function<void()> compile_grammars(ServerContext& context, IoThread& io, const HttpRequest& from,
                                       const GrammarSpecs& specs,
                                       std::function<void(Result<CompiledGrammars>)> done);

}  // namespace hadal::server
