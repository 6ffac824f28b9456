// Finds stop strings in a stream of text: a possible beginning of a stop string is held back, and nothing
// from the stop string on is ever returned, however the text is cut into pieces. An object belongs to one
// stream and is used by one thread at a time; the strings themselves are shared by the streams of a request.
// Work per byte is constant for each stop string (Knuth, Morris, Pratt).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hadal {

// Holds stop strings prepared for the search; it is immutable.
class StopStrings {
 public:
  // Empty strings are ignored.
  explicit StopStrings(const std::vector<std::string>& texts);
  bool empty() const { return stops_.empty(); }
  size_t size() const { return stops_.size(); }
  // These return the bytes of memory that the strings take, and an upper estimate of the bytes that one
  // search takes.
  size_t bytes() const;
  size_t search_bytes() const;

 private:
  friend class StopMatcher;
  struct Stop {
    std::string text;
    std::vector<uint32_t> border;  // [size], longest proper border of text[0..i]
  };
  std::vector<Stop> stops_;
};

class StopMatcher {
 public:
  // The stop string that is completed first ends the stream; if the same byte completes several, the longest
  // one does. With `no_stop_trim`, the stop string is returned as well (but nothing after it).
  explicit StopMatcher(std::shared_ptr<const StopStrings> stops, bool no_stop_trim = false);
  explicit StopMatcher(const std::vector<std::string>& stops, bool no_stop_trim = false)
      : StopMatcher(std::make_shared<const StopStrings>(stops), no_stop_trim) {}

  // Adds a piece of text and returns the text that may be shown now. After a stop it always returns nothing.
  // The view is valid until the next call.
  std::string_view append(std::string_view text);

  // Returns the text that was held back. Call it when the stream has ended without a stop. The view is valid
  // until the next call.
  std::string_view finish();

  bool stopped() const { return matched_ >= 0; }
  // Returns the stop string that ended the stream, and nothing before that.
  std::string_view matched() const;

 private:
  std::shared_ptr<const StopStrings> stops_;
  std::vector<uint32_t> states_;  // [stops], bytes of each that the end of the stream matches
  bool no_stop_trim_;
  int matched_ = -1;
  std::string held_;
  std::string out_;
};

}  // namespace hadal
