#include "server/generation/parse_task.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "base/cancel.h"
#include "base/log.h"
#include "base/memory_reserve.h"
#include "server/generation/background_pool.h"

namespace hadal::server {
namespace {

// Task is a body on its way through the worker threads.
struct Task {
  std::string body;
  std::shared_ptr<const void> charge;  // of the body
  std::string path;
  std::atomic<bool> is_left = false;  // the client has gone
};

void finish(const std::shared_ptr<HttpExchange>& exchange, ErrorStyle style, const std::string& path,
            const ParseDone& done) {
  if (exchange->disconnected()) return;
  try {
    done(exchange);
  } catch (const std::exception& error) {
    const MemoryReserve::Scope reserve;
    log_error("request failed path={} error=\"{}\"", path, error.what());
    exchange->respond(exception_response(style, error));
  }
}

// Returns true if the JSON may write a key of lower-case letters and underscores (U+005F to U+007A) with
// escapes.
bool may_escape_a_key(std::string_view body) {
  for (size_t at = 0; (at = body.find("\\u00", at)) != body.npos; at += 4) {
    const char digit = at + 4 < body.size() ? body[at + 4] : '\0';
    if (digit >= '5' && digit <= '7') return true;
  }
  return false;
}

}  // namespace

bool is_parsed_inline(std::string_view body) {
  if (body.size() > kInlineBodyBytes || may_escape_a_key(body)) return false;
  if (std::count(body.begin(), body.end(), ',') > static_cast<ptrdiff_t>(kInlineCommas)) return false;
  const auto has = [body](std::string_view key) { return body.find(key) != body.npos; };
  // A stored conversation is rendered and tokenised again, and it may have any size.
  // A strict tool's schema is checked, and so are the schemas of all tools if one of them must be called.
  return !has("stop_regex") && !has("\"n\"") && !has("previous_response_id") && !has("strict") &&
         !has("tool_choice") && (body.size() <= kInlineToolsBytes || !has("tool"));
}

void run_parse_work(ServerContext& context, std::shared_ptr<HttpExchange> exchange, ErrorStyle style,
                    ParseWork work) {
  HttpRequest& request = exchange->mutable_request();
  if (is_parsed_inline(request.body)) {
    const std::string body = std::exchange(request.body, {});
    const ParseDone done = work(body);
    return done(std::move(exchange));
  }
  const auto task = std::make_shared<Task>();
  task->body = std::exchange(request.body, {});
  task->charge = std::move(request.body_charge);
  task->path = request.path;
  IoThread& io = exchange->io();
  const uint64_t posted = context.parsers.post(
      [task, exchange, style, &io, work = std::move(work)] {
        ParseDone done;
        try {
          const CancelScope scope(task->is_left);
          check_cancelled();
          done = work(task->body);
        } catch (const CancelledError&) {  // the client has gone, or the server stops
          done = [style](const std::shared_ptr<HttpExchange>& cancelled) {
            cancelled->respond(error_response(style, 503, "the server is shutting down"));
          };
        } catch (const std::exception& error) {
          const MemoryReserve::Scope reserve;
          log_error("request failed path={} error=\"{}\"", task->path, error.what());
          done = [style, status = status_of(error)](const std::shared_ptr<HttpExchange>& failed) {
            failed->respond(error_response(style, status));
          };
        }
        const MemoryReserve::Scope reserve;  // this work brings the answer
        std::string().swap(task->body);
        task->charge.reset();
        io.post(
            [task, exchange, style, done = std::move(done)] { finish(exchange, style, task->path, done); });
      },
      request.client);
  if (posted == 0) {
    return exchange->respond(
        error_response(style, 503, "too many requests are waiting to be parsed; try again later"));
  }
  // Only this thread calls back, so neither the client's departure nor the result has been handled before.
  exchange->on_disconnect([&context, task, posted, client = request.client] {
    task->is_left = true;
    context.parsers.drop(posted, client);
  });
}

}  // namespace hadal::server
