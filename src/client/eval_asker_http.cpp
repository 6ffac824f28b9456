#include "client/eval_asker_http.h"

#include <boost/json.hpp>

#include "base/log.h"
#include "base/printable.h"
#include "client/bench_backend.h"

namespace hadal::client {
namespace {

namespace json = boost::json;

constexpr int kTries = 4;                         // per question
constexpr auto kPause = std::chrono::seconds(1);  // before the second try; doubled for each later one

std::string body_of(const EvalAsk& ask, const std::string& model) {
  json::object body = {{"model", model},
                       {"temperature", ask.temperature},
                       {"top_p", ask.top_p},
                       {"seed", ask.seed},
                       {"stream", false}};
  if (!ask.stop.empty()) body["stop"] = json::array(ask.stop.begin(), ask.stop.end());
  if (ask.messages.empty()) {
    body["prompt"] = ask.prompt;
    body["max_tokens"] = ask.max_new_tokens;
    return json::serialize(body);
  }
  json::array messages;
  for (const ChatMessage& message : ask.messages) {
    messages.push_back({{"role", message.role}, {"content", message.content}});
  }
  body["messages"] = std::move(messages);
  body["max_completion_tokens"] = ask.max_new_tokens;
  // Some exact answers contain the special tokens of tool calls.
  body["skip_special_tokens"] = false;
  body["chat_template_kwargs"] = {{"thinking", ask.thinking}};
  return json::serialize(body);
}

// Reads the parts of an answer that are needed to score its question.
Result<EvalReply> read_reply(const std::string& body, bool is_chat) {
  json::error_code error;
  const json::value parsed = json::parse(body, error);
  const json::object* object = error ? nullptr : parsed.if_object();
  const json::value* choices = object == nullptr ? nullptr : object->if_contains("choices");
  if (choices == nullptr || !choices->is_array() || choices->as_array().empty() ||
      !choices->as_array()[0].is_object()) {
    return data_loss("the answer has no choices: {}", body.substr(0, 80));
  }
  const json::object& choice = choices->as_array()[0].as_object();
  const json::object* from = &choice;
  if (is_chat) {
    const json::value* message = choice.if_contains("message");
    from = message == nullptr ? nullptr : message->if_object();
    if (from == nullptr) return data_loss("the answer has no message: {}", body.substr(0, 80));
  }
  EvalReply reply;
  const json::value* text = from->if_contains(is_chat ? "content" : "text");
  if (text != nullptr && text->is_string()) reply.text = text->as_string().c_str();
  const json::value* usage = object->if_contains("usage");
  if (usage != nullptr && usage->is_object()) {
    const json::value* count = usage->as_object().if_contains("completion_tokens");
    if (count != nullptr && count->is_int64()) reply.completion_tokens = count->as_int64();
  }
  return reply;
}

class HttpAsker : public EvalAsker {
 public:
  HttpAsker(ServerConnection server, std::string model, int64_t max_concurrency)
      : server_(std::move(server)), model_(std::move(model)), max_concurrency_(max_concurrency) {}

  Result<std::vector<EvalReply>> ask(std::span<const EvalAsk> asks, const OnReply& on_reply,
                                     const std::function<bool()>& stop) override {
    asks_ = asks;
    on_reply_ = &on_reply;
    replies_.assign(asks.size(), {});
    failure_.clear();
    num_done_ = num_started_ = 0;
    while (num_started_ < asks.size() && num_started_ < static_cast<size_t>(max_concurrency_)) start_next();
    const bool ended = server_.client().run(stop);
    if (!ended) return make_status(StatusCode::kCancelled, "interrupted after {} answers", num_done_);
    if (!failure_.empty()) return make_status(StatusCode::kInternal, "{}", failure_);
    return std::move(replies_);
  }

 private:
  class Handler : public HttpHandler {
   public:
    Handler(HttpAsker* asker, size_t index, int attempt) : asker_(asker), index_(index), attempt_(attempt) {}
    void on_event(std::string_view) override {}
    void on_done(HttpReply reply) override { asker_->take(index_, attempt_, std::move(reply)); }

   private:
    HttpAsker* asker_;
    size_t index_;
    int attempt_;
  };

  void start_next() { send(num_started_++, 1); }

  void send(size_t index, int attempt) {
    const EvalAsk& ask = asks_[index];
    const ServerApi api = ask.messages.empty() ? ServerApi::kCompletions : ServerApi::kChat;
    server_.client().start({.target = std::string(target_of(api)), .body = body_of(ask, model_)},
                           std::make_shared<Handler>(this, index, attempt));
  }

  void take(size_t index, int attempt, HttpReply reply) {
    std::string problem;
    if (!reply.ok()) {
      problem = describe_failure(reply);
    } else if (Result<EvalReply> read = read_reply(reply.body, !asks_[index].messages.empty()); read.ok()) {
      replies_[index] = std::move(read).value();
    } else {
      problem = read.status().message;
    }
    // A request that the server refuses as invalid stays invalid; a full queue or a broken connection may be
    // temporary.
    const bool may_pass = reply.status == 0 || reply.status == 429 || reply.status >= 500;
    if (!problem.empty() && may_pass && attempt < kTries && failure_.empty()) {
      log_warning("question {} is asked again reason=\"{}\"", index + 1, printable(problem));
      server_.client().call_after(kPause * (1 << (attempt - 1)),
                                  [this, index, attempt] { send(index, attempt + 1); });
      return;
    }
    if (!problem.empty()) {
      if (failure_.empty()) failure_ = fmt::format("question {}: {}", index + 1, problem);
      return;  // no further question is started
    }
    ++num_done_;
    (*on_reply_)(index, replies_[index]);
    if (failure_.empty() && num_started_ < asks_.size()) start_next();
  }

  ServerConnection server_;
  std::string model_;
  int64_t max_concurrency_;
  std::span<const EvalAsk> asks_;
  const OnReply* on_reply_ = nullptr;
  std::vector<EvalReply> replies_;
  std::string failure_;
  size_t num_started_ = 0;
  size_t num_done_ = 0;
};

}  // namespace

std::unique_ptr<EvalAsker> make_http_asker(ServerConnection server, std::string model,
                                           int64_t max_concurrency) {
  return std::make_unique<HttpAsker>(std::move(server), std::move(model), max_concurrency);
}

}  // namespace hadal::client
