#include "cli/http_response.h"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace hadal::cli {
namespace {

constexpr size_t kMaxLine = size_t{64} << 10;

bool equals_ignoring_case(std::string_view a, std::string_view b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](char x, char y) {
    return std::tolower(static_cast<unsigned char>(x)) == std::tolower(static_cast<unsigned char>(y));
  });
}

std::string_view trimmed(std::string_view text) {
  const size_t begin = text.find_first_not_of(" \t");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t") - begin + 1);
}

// Whether a comma-separated list names `word`, parameters after ';' aside.
bool list_has(std::string_view list, std::string_view word) {
  while (!list.empty()) {
    const size_t comma = list.find(',');
    const std::string_view item = list.substr(0, comma);
    if (equals_ignoring_case(trimmed(item.substr(0, item.find(';'))), word)) return true;
    list = comma == std::string_view::npos ? std::string_view() : list.substr(comma + 1);
  }
  return false;
}

// Digits and nothing else.
template <typename T>
bool parse_number(std::string_view text, int base, T& value) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value, base);
  return error == std::errc() && end == text.data() + text.size();
}

}  // namespace

Result<size_t> HttpResponseParser::feed(std::string_view bytes) {
  size_t at = 0;
  started_ = started_ || !bytes.empty();
  while (at < bytes.size() && state_ != State::kDone) {
    if (state_ == State::kBody || state_ == State::kChunk) {
      const size_t take = static_cast<size_t>(std::min<uint64_t>(left_, bytes.size() - at));
      on_body_(bytes.substr(at, take));
      at += take;
      left_ -= take;
      if (left_ == 0) state_ = state_ == State::kBody ? State::kDone : State::kChunkEnd;
      continue;
    }
    if (state_ == State::kBodyToClose) {
      on_body_(bytes.substr(at));
      return bytes.size();
    }
    const size_t end = bytes.find('\n', at);
    line_ += bytes.substr(at, end == std::string_view::npos ? end : end - at);
    if (line_.size() > kMaxLine) return data_loss("the server sent a line of more than {} bytes", kMaxLine);
    if (end == std::string_view::npos) return bytes.size();
    at = end + 1;
    if (line_.ends_with('\r')) line_.pop_back();
    const std::string line = std::exchange(line_, {});
    HADAL_RETURN_IF_ERROR(take_line(line));
  }
  return at;
}

Result<void> HttpResponseParser::take_line(std::string_view line) {
  switch (state_) {
    case State::kStatus:
      return take_status(line);
    case State::kHeader:
      return line.empty() ? end_headers() : take_header(line);
    case State::kChunkSize: {
      const std::string_view digits = trimmed(line.substr(0, line.find(';')));
      if (digits.empty() || !parse_number(digits, 16, left_)) {
        return data_loss("the server sent a bad chunk size '{}'", line.substr(0, 40));
      }
      state_ = left_ == 0 ? State::kTrailer : State::kChunk;
      return {};
    }
    case State::kChunkEnd:
      if (!line.empty()) return data_loss("the server sent a chunk longer than its size");
      state_ = State::kChunkSize;
      return {};
    case State::kTrailer:
      if (line.empty()) state_ = State::kDone;
      return {};
    default:
      return {};
  }
}

Result<void> HttpResponseParser::take_status(std::string_view line) {
  if (line.size() < 12 || !line.starts_with("HTTP/1.") || line[8] != ' ' ||
      !parse_number(line.substr(9, 3), 10, status_) || status_ < 100) {
    return data_loss("the server does not speak HTTP/1.1: it sent '{}'", line.substr(0, 40));
  }
  keep_alive_ = line[7] != '0';
  chunked_ = has_length_ = until_close_ = event_stream_ = false;
  left_ = 0;
  state_ = State::kHeader;
  return {};
}

Result<void> HttpResponseParser::take_header(std::string_view line) {
  const size_t colon = line.find(':');
  if (colon == std::string_view::npos || colon == 0) {
    return data_loss("the server sent a bad header line '{}'", line.substr(0, 40));
  }
  const std::string_view name = line.substr(0, colon);
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (equals_ignoring_case(name, "content-length")) {
    if (!parse_number(value, 10, left_)) return data_loss("the server sent Content-Length '{}'", value);
    has_length_ = true;
  } else if (equals_ignoring_case(name, "transfer-encoding")) {
    chunked_ = list_has(value, "chunked");
  } else if (equals_ignoring_case(name, "connection")) {
    if (list_has(value, "close")) keep_alive_ = false;
    if (list_has(value, "keep-alive")) keep_alive_ = true;
  } else if (equals_ignoring_case(name, "content-type")) {
    event_stream_ = equals_ignoring_case(trimmed(value.substr(0, value.find(';'))), "text/event-stream");
  }
  return {};
}

Result<void> HttpResponseParser::end_headers() {
  if (status_ < 200) {
    state_ = State::kStatus;
  } else if (status_ == 204 || status_ == 304) {
    state_ = State::kDone;
  } else if (chunked_) {
    state_ = State::kChunkSize;
  } else if (has_length_) {
    state_ = left_ == 0 ? State::kDone : State::kBody;
  } else {
    until_close_ = true;
    state_ = State::kBodyToClose;
  }
  return {};
}

Result<void> HttpResponseParser::finish() {
  if (state_ == State::kBodyToClose) state_ = State::kDone;
  if (state_ != State::kDone) {
    return data_loss("{}", started_ ? "the connection ended in the middle of an answer"
                                    : "the connection ended without an answer");
  }
  return {};
}

void SseParser::feed(std::string_view bytes) {
  while (!bytes.empty()) {
    if (after_cr_ && bytes[0] == '\n') bytes.remove_prefix(1);  // the second half of a line end
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

}  // namespace hadal::cli
