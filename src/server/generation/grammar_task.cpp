#include "server/generation/grammar_task.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <map>
#include <mutex>
#include <optional>
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

constexpr size_t kNoGrammar = SIZE_MAX;

// Returns what a grammar counts while it waits to be compiled.
size_t waiting_bytes(const GrammarSpec& spec) {
  return kCompileBytes + spec.text.size() * kCompileBytesPerByte;
}

// GrammarJob compiles the grammars of one request one at a time. After each grammar the request waits for its
// client's next turn.
class GrammarJob : public std::enable_shared_from_this<GrammarJob> {
 public:
  using Done = std::function<void(Result<CompiledGrammars>)>;

  GrammarJob(ServerContext& context, IoThread& io, const HttpRequest& from, const GrammarSpecs& specs,
             Done done)
      : context_(context),
        io_(io),
        client_(from.client),
        done_(std::move(done)),
        memory_(ledger_for(context, from)) {
    std::map<const GrammarSpec*, size_t> known;
    for (const auto& spec : specs) {
      size_t index = kNoGrammar;
      if (spec != nullptr) {
        const auto [at, is_new] = known.emplace(spec.get(), different_.size());
        if (is_new) different_.push_back(spec);
        index = at->second;
      }
      index_of_.push_back(index);
    }
  }

  // Counts all grammars and begins, or answers with the error.
  void start() {
    size_t bytes = 0;
    for (const auto& spec : different_) bytes += waiting_bytes(*spec);
    if (const Result<void> counted = memory_.add(MemoryKind::kGrammar, bytes); !counted.ok())
      return end(counted.status());
    if (!post()) end(make_status(StatusCode::kResourceExhausted, kTooMany));
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
  // Waits for the client's next turn, unless leave() was called. Returns false if too many tasks are waiting.
  bool post() {
    const std::lock_guard lock(mutex_);
    if (left_) return true;
    waiting_task_ = context_.background.post([self = shared_from_this()] { self->run(); }, client_);
    return waiting_task_ != 0;
  }

  void run() {
    try {
      const Result<bool> complete = advance();
      if (!complete.ok()) return end(complete.status());
      if (*complete) return end(take_all());
      if (!post()) end(make_status(StatusCode::kResourceExhausted, kTooMany));
    } catch (const std::exception& error) {
      const MemoryReserve::Scope reserve;  // the answer must arrive
      log_error("grammar failed error=\"{}\"", error.what());
      end(status_of(error));
    }
  }

  // Compiles the next grammar. Returns true if all are compiled.
  Result<bool> advance() {
    if (left_ || context_.background.stopping())
      return make_status(StatusCode::kCancelled, "the grammar is no longer needed");
    const GrammarSpec& spec = *different_[compiled_.size()];
    const auto compile_bytes = static_cast<size_t>(context_.grammars->limits().compile_bytes);
    HADAL_RETURN_IF_ERROR(memory_.add(MemoryKind::kGrammar, compile_bytes));
    const auto hold = [this](std::shared_ptr<const void> part, int64_t bytes) {
      return memory_.add_shared(MemoryKind::kGrammar, std::move(part), static_cast<size_t>(bytes));
    };
    HADAL_ASSIGN_OR_RETURN(const std::shared_ptr<const CompiledGrammar> grammar,
                           context_.grammars->compile(spec, hold));
    // The grammar may also have been found, or another thread may have compiled it.
    if (auto part = grammar->shared_part(); part != nullptr)
      HADAL_RETURN_IF_ERROR(hold(std::move(part), grammar->shared_bytes()));
    memory_.set(MemoryKind::kGrammar, memory_.bytes(MemoryKind::kGrammar) - compile_bytes -
                                          waiting_bytes(spec) + static_cast<size_t>(grammar->size_bytes()));
    compiled_.push_back(grammar);
    return compiled_.size() == different_.size();
  }

  // No task of this job runs or waits any more, except the caller's.
  void end(Result<CompiledGrammars> result) {
    memory_.clear();  // of a result that is an error; otherwise it is part of the result
    result_ = std::move(result);
    io_.post([self = shared_from_this()] {
      if (!self->left_) self->done_(std::move(*self->result_));
    });
  }
  CompiledGrammars take_all() {
    CompiledGrammars all;
    all.of_specs.reserve(index_of_.size());
    for (const size_t index : index_of_)
      all.of_specs.push_back(index == kNoGrammar ? nullptr : compiled_[index]);
    all.memory = std::move(memory_);
    return all;
  }

  ServerContext& context_;
  IoThread& io_;
  const std::string client_;
  const Done done_;
  GrammarSpecs different_;
  std::vector<size_t> index_of_;  // in different_, of each spec
  // One task at a time uses these three, and the I/O thread before the first and after the last of them.
  std::vector<std::shared_ptr<const CompiledGrammar>> compiled_;  // of different_
  MemoryCharge memory_;
  std::optional<Result<CompiledGrammars>> result_;
  std::mutex mutex_;           // held while a task is posted, so that leave() finds the last one
  uint64_t waiting_task_ = 0;  // the last task that was posted; guarded by mutex_
  std::atomic<bool> left_ = false;
};

}  // namespace

std::function<void()> compile_grammars(ServerContext& context, IoThread& io, const HttpRequest& from,
                                       const GrammarSpecs& specs,
                                       std::function<void(Result<CompiledGrammars>)> done) {
  const auto first =
      std::find_if(specs.begin(), specs.end(), [](const auto& spec) { return spec != nullptr; });
  if (first == specs.end()) {
    CompiledGrammars none;
    none.of_specs.resize(specs.size());
    done(std::move(none));
    return [] {};
  }
  if (context.grammars == nullptr) {
    done(invalid_argument("{}: this server does not support structured output ({})",
                          (*first)->field.empty() ? to_string((*first)->kind) : (*first)->field,
                          grammar_available() ? "--grammar-backend none, or it runs without a tokenizer"
                                              : "it was built without xgrammar"));
    return [] {};
  }
  const auto job = std::make_shared<GrammarJob>(context, io, from, specs, std::move(done));
  job->start();
  return [weak = std::weak_ptr(job)] {
    if (const auto left = weak.lock()) left->leave();
  };
}

}  // namespace hadal::server
