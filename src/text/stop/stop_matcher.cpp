#include "text/stop/stop_matcher.h"

#include <algorithm>
#include <utility>

namespace hadal {

StopStrings::StopStrings(const std::vector<std::string>& texts) {
  for (const std::string& text : texts) {
    if (text.empty()) continue;
    Stop stop{text, std::vector<uint32_t>(text.size(), 0)};
    for (size_t i = 1; i < text.size(); ++i) {
      uint32_t border = stop.border[i - 1];
      while (border > 0 && text[border] != text[i]) border = stop.border[border - 1];
      stop.border[i] = border + (text[border] == text[i] ? 1 : 0);
    }
    stops_.push_back(std::move(stop));
  }
}

size_t StopStrings::bytes() const {
  size_t out = stops_.capacity() * sizeof(Stop);
  for (const Stop& stop : stops_) out += stop.text.size() * (1 + sizeof(uint32_t));
  return out;
}

size_t StopStrings::search_bytes() const {
  size_t longest = 0;
  for (const Stop& stop : stops_) longest = std::max(longest, stop.text.size());
  // The text that is held back, the text that is shown and the match each have at most the length of the
  // longest stop string, and a growing std::string doubles its capacity.
  return stops_.size() * sizeof(uint32_t) + 3 * 2 * longest;
}

StopMatcher::StopMatcher(std::shared_ptr<const StopStrings> stops, bool no_stop_trim)
    : stops_(std::move(stops)), states_(stops_->size(), 0), no_stop_trim_(no_stop_trim) {}

std::string_view StopMatcher::append(std::string_view text) {
  out_.clear();
  if (stopped()) return out_;
  const auto& stops = stops_->stops_;
  size_t could_begin = 0;  // the longest end of the stream that could begin a stop
  for (size_t i = 0; i < text.size(); ++i) {
    could_begin = 0;
    for (size_t s = 0; s < stops.size(); ++s) {
      const StopStrings::Stop& stop = stops[s];
      uint32_t& state = states_[s];
      while (state > 0 && stop.text[state] != text[i]) state = stop.border[state - 1];
      if (stop.text[state] == text[i]) ++state;
      if (state == stop.text.size()) {
        const auto is_longer = [&] {
          return stop.text.size() > stops[static_cast<size_t>(matched_)].text.size();
        };
        if (matched_ < 0 || is_longer()) matched_ = static_cast<int>(s);
      }
      could_begin = std::max<size_t>(could_begin, state);
    }
    if (stopped()) {
      held_.append(text.substr(0, i + 1));
      if (!no_stop_trim_) held_.resize(held_.size() - matched().size());
      out_.swap(held_);
      held_.clear();
      return out_;
    }
  }
  if (text.empty()) return out_;
  held_.append(text);
  out_.assign(held_, 0, held_.size() - could_begin);
  held_.erase(0, held_.size() - could_begin);
  return out_;
}

std::string_view StopMatcher::finish() {
  out_.clear();
  if (!stopped()) out_.swap(held_);
  held_.clear();
  std::fill(states_.begin(), states_.end(), 0);
  return out_;
}

std::string_view StopMatcher::matched() const {
  return stopped() ? std::string_view(stops_->stops_[static_cast<size_t>(matched_)].text)
                   : std::string_view();
}

}  // namespace hadal
