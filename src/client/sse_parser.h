// Reads the events of a text/event-stream as its bytes arrive. One thread uses an object.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace hadal::client {

// Passes the data of each event to `on_data`: the lines "data: …" up to an empty line, joined by newlines.
// Other fields and comments are dropped (WHATWG HTML, section 9.2.6).
class SseParser {
 public:
  using OnData = std::function<void(std::string_view)>;

  explicit SseParser(OnData on_data) : on_data_(std::move(on_data)) {}
  void feed(std::string_view bytes);

 private:
  void take_line(std::string_view line);

  OnData on_data_;
  std::string line_;
  std::string data_;
  bool has_data_ = false;
  bool after_cr_ = false;
};

}  // namespace hadal::client
