#include "tests/server/test_server.h"

#include <algorithm>

#include "engine/step_executor.h"
#include "tests/source_dir.h"

namespace hadal::server::testing {

void StepGate::allow(int64_t steps) {
  const std::lock_guard lock(mutex_);
  allowed_ = steps;
  if (steps > 0) holds_engine_ = false;
  changed_.notify_all();
}

void StepGate::pass() {
  std::unique_lock lock(mutex_);
  holds_engine_ = allowed_ <= 0;
  changed_.wait(lock, [this] { return allowed_ > 0; });
  holds_engine_ = false;
  --allowed_;
}

bool StepGate::holds_engine() const {
  const std::lock_guard lock(mutex_);
  return holds_engine_;
}

namespace {

// Generates script[(position - 1) % size] at `position`, or the lowest allowed token if a mask forbids that.
class ScriptExecutor final : public StepExecutor {
 public:
  ScriptExecutor(std::vector<int32_t> script, std::shared_ptr<StepGate> gate)
      : script_(std::move(script)), gate_(std::move(gate)) {}

  void launch(StagedStep step) override { steps_.push_back(std::move(step)); }
  void set_masks(int64_t step, std::vector<uint32_t> masks) override { masks_[step] = std::move(masks); }

  StepOutput wait() override {
    gate_->pass();
    const StagedStep step = std::move(steps_.front());
    steps_.pop_front();
    for (const SlotStart& start : step.slots) logprobs_[start.slot] = start.logprobs;
    StepOutput output;
    output.step = step.step;
    const std::vector<uint32_t> masks = std::move(masks_[step.step]);
    masks_.erase(step.step);
    size_t word = 0;
    for (const SampleSpec& spec : step.samples) {
      SampledToken sampled{.slot = spec.slot,
                           .token = script_[static_cast<size_t>(spec.position - 1) % script_.size()]};
      const auto allowed = [&](int32_t token) {
        return (masks.at(word + static_cast<size_t>(token) / 32) >> (token % 32) & 1U) != 0;
      };
      if (spec.constrained) {
        if (!allowed(sampled.token)) {
          sampled.token = 0;
          while (!allowed(sampled.token)) ++sampled.token;
        }
        word += kVocab / 32;
      }
      if (logprobs_[spec.slot].enabled)
        sampled.logprob = logprob_of(sampled.token, logprobs_[spec.slot].top_num);
      output.samples.push_back(std::move(sampled));
    }
    for (const PromptScore& score : step.scores) {
      output.prompt_scores.emplace_back(score.slot,
                                        logprob_of(score.token_id, logprobs_[score.slot].top_num));
    }
    return output;
  }

 private:
  static TokenLogprob logprob_of(int32_t token, int64_t top_num) {
    TokenLogprob out{.token_id = token, .logprob = -0.5F};
    for (int64_t i = 0; i < top_num; ++i) {
      out.top.emplace_back(static_cast<int32_t>((token + i) % kVocab), -0.5F - static_cast<float>(i));
    }
    return out;
  }

  std::vector<int32_t> script_;
  std::shared_ptr<StepGate> gate_;
  std::deque<StagedStep> steps_;
  std::map<int64_t, std::vector<uint32_t>> masks_;
  std::map<int32_t, LogprobOptions> logprobs_;
};

}  // namespace

void TestIo::post(std::function<void()> task) {
  const std::lock_guard lock(mutex_);
  tasks_.push_back(std::move(task));
  changed_.notify_all();
}

void TestIo::post_after(std::chrono::milliseconds delay, std::function<void()> task) {
  timers_.emplace(std::chrono::steady_clock::now() + delay, std::move(task));
}

bool TestIo::is_empty() {
  const std::lock_guard lock(mutex_);
  return tasks_.empty();
}

void TestIo::drop_tasks() {
  timers_.clear();
  std::deque<std::function<void()>> dropped;  // destroyed outside of the lock, because tasks own objects
  const std::lock_guard lock(mutex_);
  dropped.swap(tasks_);
}

bool TestIo::run_until(const std::function<bool()>& done) {
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while (!done()) {
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      changed_.wait_for(lock, std::chrono::milliseconds(5), [this] { return !tasks_.empty(); });
      if (!tasks_.empty()) {
        task = std::move(tasks_.front());
        tasks_.pop_front();
      }
    }
    if (task) task();
    while (!timers_.empty() && timers_.begin()->first <= std::chrono::steady_clock::now()) {
      const auto timer = std::move(timers_.begin()->second);
      timers_.erase(timers_.begin());
      timer();
    }
  }
  return true;
}

void TestExchange::respond(HttpResponse answer) {
  if (gone) return;
  ++num_answers;
  EXPECT_FALSE(streaming) << "respond() inside a stream";
  response = std::move(answer);
  end(response.status);
}

void TestExchange::start_stream(HttpResponse head) {
  if (gone) return;
  ++num_answers;
  streaming = true;
  response = std::move(head);
}

void TestExchange::write(std::string_view data) {
  if (gone) return;
  EXPECT_TRUE(streaming && !complete);
  ++num_writes;
  response.body += data;
}

void TestExchange::finish() {
  if (gone) return;
  EXPECT_TRUE(streaming && !complete);
  end(200);
}

void TestExchange::read_again() {
  is_writable = true;
  if (on_writable_) std::exchange(on_writable_, nullptr)();
}

void TestExchange::disconnect() {
  gone = true;
  request_.tally.reset();
  if (on_disconnect_) std::exchange(on_disconnect_, nullptr)();
}

void TestExchange::end(int status) {
  complete = true;
  if (const auto tally = std::exchange(request_.tally, nullptr))
    tally->set_answered(status, 0.5, "id-1", "peer-1");
}

TestServer::TestServer(Options options) : client_memory_(options.client_memory) {
  tokenizer_ = Tokenizer::load(source_dir() + "/models/hadal-tiny").value();
  config_.vocab_size = kVocab;
  config_.max_position_embeddings = 4096;
  config_.eos_token_ids = {1};
  script_ = tokenizer_->encode(options.script, false);
  EngineOptions& engine = options.engine;
  if (engine.max_total_tokens == 0) engine.max_total_tokens = 8192;
  if (engine.context_length == 0) engine.context_length = 4096;
  engine.decode_log_interval = 0;
  engine_ = Engine::create(std::make_unique<ScriptExecutor>(script_, gate_), config_, engine).value();
  ServerOptions& server = options.server;
  server.model_path = "models/hadal-tiny";
  server.tokenizer_path = "models/hadal-tiny";
  if (server.served_model_name.empty()) server.served_model_name = "hadal-tiny";
  server.max_running_requests = engine.max_running_requests;
  if (server.server_args_json.empty()) server.server_args_json = "{\"port\":30000}";
  if (options.with_grammars) grammars_ = GrammarCompiler::create(*tokenizer_, {.vocab_size = kVocab}).value();
  server_ =
      std::make_unique<Server>(Server::Parts{.options = std::move(server),
                                             .config = config_,
                                             .engine = *engine_,
                                             .tokenizer = options.with_tokenizer ? tokenizer_.get() : nullptr,
                                             .chat_format = options.chat_format,
                                             .grammars = grammars_.get()},
                               1);
  server_->set_ready(1.5);
}

TestServer::~TestServer() {
  gate_->open();
  engine_->check_integrity();
  server_->stop();
  io_.drop_tasks();  // they may hold places of the engine's queue
  server_.reset();
  engine_.reset();
}

std::shared_ptr<TestExchange> TestServer::send(std::string method, std::string path, std::string body,
                                               HeaderList headers) {
  HttpRequest request{.method = std::move(method),
                      .path = std::move(path),
                      .headers = std::move(headers),
                      .client = "peer:127.0.0.1",
                      .memory = client_memory_};
  HttpAdmission admission = server_->admit(request);  // as the transport does
  if (!admission.client.empty()) request.client = admission.client;
  request.body = std::move(body);
  request.route = admission.route;
  request.tally = std::move(admission.tally);
  auto exchange = std::make_shared<TestExchange>(io_, std::move(request));
  if (admission.refusal) {
    exchange->respond(std::move(*admission.refusal));
  } else {
    server_->handle(exchange);
  }
  return exchange;
}

HttpResponse TestServer::call(std::string method, std::string path, std::string body, HeaderList headers) {
  const auto exchange = send(std::move(method), std::move(path), std::move(body), std::move(headers));
  EXPECT_TRUE(wait(*exchange));
  EXPECT_EQ(exchange->num_answers, 1);
  return exchange->response;
}

HttpResponse TestServer::generate_step_by_step(std::string body) {
  gate_->allow(0);
  const auto exchange = send("POST", "/generate", std::move(body));
  EXPECT_TRUE(io_.run_until([&] {
    if (gate_->holds_engine() && io_.is_empty()) gate_->allow(1);
    return exchange->complete;
  }));
  gate_->open();
  EXPECT_EQ(exchange->num_answers, 1);
  return exchange->response;
}

bool TestServer::wait(TestExchange& exchange) {
  return io_.run_until([&] { return exchange.complete; });
}

std::string TestServer::said(int64_t prompt_tokens, int64_t count) const {
  return tokenizer_->decode(said_ids(prompt_tokens, count), true);
}

std::vector<int32_t> TestServer::said_ids(int64_t prompt_tokens, int64_t count) const {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) {
    ids.push_back(script_[static_cast<size_t>(prompt_tokens - 1 + i) % script_.size()]);
  }
  return ids;
}

std::shared_ptr<const KeyRing> keys_of(std::string key, std::string admin_key) {
  return std::make_shared<const KeyRing>(std::vector<ApiKey>{{"", std::move(key)}}, std::move(admin_key));
}

std::vector<boost::json::object> events_of(const std::string& body) {
  std::vector<boost::json::object> events;
  bool done = false;
  for (size_t at = 0; at < body.size();) {
    const size_t end = body.find("\n\n", at);
    EXPECT_NE(end, std::string::npos) << "an event without an end";
    if (end == std::string::npos) break;
    const std::string line = body.substr(at, end - at);
    EXPECT_TRUE(line.starts_with("data: ")) << line;
    EXPECT_FALSE(done) << "something after [DONE]";
    if (line == "data: [DONE]") {
      done = true;
    } else {
      events.push_back(boost::json::parse(line.substr(6)).as_object());
    }
    at = end + 2;
  }
  EXPECT_TRUE(done) << body;
  return events;
}

boost::json::value parsed(const HttpResponse& response) {
  return boost::json::parse(response.body);
}

bool has_retry_after(const HttpResponse& response) {
  for (const auto& [name, value] : response.headers) {
    if (name == "Retry-After") return !value.empty();
  }
  return false;
}

}  // namespace hadal::server::testing
