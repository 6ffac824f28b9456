#include "server/generation/grammar_task.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <set>
#include <string_view>
#include <utility>

#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/admission/memory_costs.h"
#include "server/generation/background_pool.h"
#include "server/json/api_error.h"

namespace hadal::server {
namespace {

static_assert(GrammarMemoryLimits{}.position_bytes == kMatcherBytes);

constexpr const char* kTooMany = "too many grammars are waiting to be compiled; try again";

// GrammarJob compiles the grammars of one request one at a time. After each grammar the request waits for its
// client's next turn.
class GrammarJob : public std::enable_shared_from_this<GrammarJob> {
 public:
  using Done = std::function<void(Result<CompiledGrammars>)>;

  GrammarJob(ServerContext& context, IoThread& io, std::string client, GrammarSpecs specs, Done done)
      : context_(context),
        io_(io),
        client_(std::move(client)),
        specs_(std::move(specs)),
        compiled_(specs_.size()),
        done_(std::move(done)) {}

  // Waits for the client's next turn, unless leave() was called. Returns false if too many tasks are waiting.
  bool post() {
    const std::lock_guard lock(mutex_);
    if (left_) return true;
    waiting_task_ = context_.background.post([self = shared_from_this()] { self->run(); }, client_);
    return waiting_task_ != 0;
  }
  void end(Result<CompiledGrammars> result) {
    io_.post([self = shared_from_this(), result = std::move(result)]() mutable {
      if (!self->left_) self->done_(std::move(result));
    });
  }
  // Only the I/O thread calls it, with a pointer that keeps this alive.
  void leave() {
    uint64_t task = 0;
    {
      const std::lock_guard lock(mutex_);
      left_ = true;  // from now on nothing is posted
      task = waiting_task_;
    }
    context_.background.drop(task, client_);
  }

 private:
  void run() {
    try {
      const Result<bool> complete = advance();
      if (!complete.ok()) return end(complete.status());
      if (*complete) return end(std::move(compiled_));
      if (!post()) end(make_status(StatusCode::kResourceExhausted, kTooMany));
    } catch (const std::exception& error) {
      const MemoryReserve::Scope reserve;  // the answer must arrive
      log_error("grammar failed error=\"{}\"", error.what());
      end(status_of(error));
    }
  }

  // Compiles the next grammar. Returns true if all are compiled.
  Result<bool> advance() {
    for (bool has_compiled = false; next_ < specs_.size(); ++next_) {
      const GrammarSpec* spec = specs_[next_].get();
      if (spec == nullptr) continue;
      // Equal pointers mean equal texts, and in most requests all specs are equal.
      if (next_ > 0 && specs_[next_ - 1].get() == spec) {
        compiled_[next_] = compiled_[next_ - 1];
        continue;
      }
      const auto [at, is_new] = seen_.emplace(std::pair(spec->kind, std::string_view(spec->text)), next_);
      if (!is_new) {
        compiled_[next_] = compiled_[at->second];
        continue;
      }
      if (has_compiled) {
        seen_.erase(at);
        return false;
      }
      has_compiled = true;
      if (left_ || context_.background.stopping())
        return make_status(StatusCode::kCancelled, "the grammar is no longer needed");
      MemoryCharge compiling(context_.memory);
      HADAL_RETURN_IF_ERROR(compiling.add(MemoryKind::kGrammar,
                                          static_cast<size_t>(context_.grammars->limits().compile_bytes)));
      HADAL_ASSIGN_OR_RETURN(compiled_[next_], context_.grammars->compile(*spec));
    }
    return true;
  }

  ServerContext& context_;
  IoThread& io_;
  const std::string client_;
  const GrammarSpecs specs_;
  CompiledGrammars compiled_;
  const Done done_;
  std::mutex mutex_;           // held while a task is posted, so that leave() finds the last one
  uint64_t waiting_task_ = 0;  // the last task that was posted; guarded by mutex_
  std::atomic<bool> left_ = false;
  size_t next_ = 0;
  std::map<std::pair<GrammarKind, std::string_view>, size_t> seen_;
};

}  // namespace

std::function<void()> compile_grammars(ServerContext& context, IoThread& io, const std::string& client,
                                       GrammarSpecs specs,
                                       std::function<void(Result<CompiledGrammars>)> done) {
  const auto first =
      std::find_if(specs.begin(), specs.end(), [](const auto& spec) { return spec != nullptr; });
  if (first == specs.end()) {
    done(CompiledGrammars(specs.size()));
    return [] {};
  }
  if (context.grammars == nullptr) {
    done(invalid_argument("{}: this server does not support structured output ({})",
                          (*first)->field.empty() ? to_string((*first)->kind) : (*first)->field,
                          grammar_available() ? "--grammar-backend none, or it runs without a tokenizer"
                                              : "it was built without xgrammar"));
    return [] {};
  }
  const auto job = std::make_shared<GrammarJob>(context, io, client, std::move(specs), std::move(done));
  if (!job->post()) job->end(make_status(StatusCode::kResourceExhausted, kTooMany));
  return [weak = std::weak_ptr(job)] {
    if (const auto left = weak.lock()) left->leave();
  };
}

Result<void> charge_grammars(MemoryCharge& charge, const GrammarSpecs& specs) {
  std::set<const GrammarSpec*> seen;
  size_t bytes = 0;
  for (const auto& spec : specs) {
    if (spec != nullptr && seen.insert(spec.get()).second)
      bytes += kCompileBytes + spec->text.size() * kCompileBytesPerByte;
  }
  return charge.add(MemoryKind::kGrammar, bytes);
}

Result<void> charge_grammars(MemoryCharge& charge, const CompiledGrammars& grammars) {
  std::set<const CompiledGrammar*> seen;
  size_t bytes = 0;
  for (const auto& grammar : grammars) {
    if (grammar != nullptr && seen.insert(grammar.get()).second)
      bytes += static_cast<size_t>(grammar->size_bytes());
  }
  const size_t counted = charge.bytes(MemoryKind::kGrammar);
  if (bytes > counted) return charge.add(MemoryKind::kGrammar, bytes - counted);
  charge.set(MemoryKind::kGrammar, bytes);
  return {};
}

}  // namespace hadal::server
