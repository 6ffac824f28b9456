// The answer of one HTTP request that consists of one or several generations: whole JSON, or server-sent
// events with flow control. I/O thread only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/generation.h"
#include "server/http.h"

namespace hadal::server {

// `data: <json>\n\n` events over an exchange. Generations attached to it are paused while the client does not
// read and cancelled when it goes away.
class SseStream {
 public:
  explicit SseStream(std::shared_ptr<HttpExchange> exchange);
  void attach(std::shared_ptr<Generation> generation);
  // Sends the head with the first event.
  void event(std::string_view json);
  // "data: [DONE]\n\n" and the end.
  void done();
  bool started() const { return started_; }

 private:
  std::shared_ptr<HttpExchange> exchange_;
  std::vector<std::shared_ptr<Generation>> generations_;
  bool started_ = false;
};

}  // namespace hadal::server
