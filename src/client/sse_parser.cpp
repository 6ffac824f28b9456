#include "client/sse_parser.h"

#include <utility>

namespace hadal::client {

void SseParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes[0] == '\n') bytes.remove_prefix(1);  // second half of a line break
    after_cr_ = false;
    const size_t end = bytes.find_first_of("\r\n");
    if (end == std::string_view::npos) {
      line_ += bytes;
      return;
    }
    if (line_.empty()) {
      take_line(bytes.substr(0, end));
    } else {
      line_ += bytes.substr(0, end);
      const std::string line = std::exchange(line_, {});
      take_line(line);
    }
    after_cr_ = bytes[end] == '\r';
    bytes.remove_prefix(end + 1);
  }
}

void SseParser::take_line(std::string_view line) {
  if (line.empty()) {
    if (has_data_) on_data_(data_);
    data_.clear();
    has_data_ = false;
    return;
  }
  if (line.substr(0, line.find(':')) != "data") return;
  std::string_view value = line.size() > 4 ? line.substr(5) : std::string_view();
  if (value.starts_with(' ')) value.remove_prefix(1);
  if (has_data_) data_ += '\n';
  data_ += value;
  has_data_ = true;
}

}  // namespace hadal::client
