#include "text/json_spelling.h"

#include <charconv>
#include <limits>
#include <map>
#include <utility>

#include <nlohmann/json.hpp>

#include "text/json_error.h"

namespace hadal {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxSpelledDepth = 128;

// Python writes an exponent for numbers below 1e-4 or from 1e16 on, and always writes a point or an exponent.
std::string spell_double(double value) {
  char buffer[64];
  const auto written =
      std::to_chars(std::begin(buffer), std::end(buffer), value, std::chars_format::scientific);
  std::string text(std::begin(buffer), written.ptr);
  const int exponent = std::stoi(text.substr(text.find('e') + 1));
  if (exponent < -4 || exponent >= 16) return text;
  const auto fixed = std::to_chars(std::begin(buffer), std::end(buffer), value, std::chars_format::fixed);
  text.assign(std::begin(buffer), fixed.ptr);
  return text.find('.') == text.npos ? text + ".0" : text;
}

// Speller writes the text from the parser's events, without building a document. A container's text is
// written once, and again only if two members of an object have the same key. For an array's values, only the
// text is kept.
class Speller : public nlohmann::json_sax<Json> {
 public:
  // Stops when more than `max_bytes` are written.
  explicit Speller(size_t max_bytes) : max_bytes_(max_bytes) {}

  bool null() override { return place("null"); }
  bool boolean(bool value) override { return place(value ? "true" : "false"); }
  bool number_integer(number_integer_t value) override { return place(std::to_string(value)); }
  bool number_unsigned(number_unsigned_t value) override { return place(std::to_string(value)); }
  bool number_float(number_float_t value, const string_t& digits) override {
    // An integer that is too large for 64 bits arrives here as well.
    const bool is_integer = digits.find_first_of(".eE") == digits.npos;
    return place(is_integer ? digits : spell_double(value));
  }
  bool string(string_t& value) override {
    begin_value();
    out_ += quote_json(value);
    return end_value(true);
  }
  bool binary(binary_t& /*value*/) override { return false; }
  bool start_object(size_t /*size*/) override { return open(true); }
  bool start_array(size_t /*size*/) override { return open(false); }
  bool end_object() override { return close(); }
  bool end_array() override { return close(); }
  bool key(string_t& value) override {
    key_ = std::move(value);
    return true;
  }
  bool parse_error(size_t /*position*/, const std::string& /*token*/,
                   const nlohmann::detail::exception& /*error*/) override {
    return false;
  }

  bool is_too_deep() const { return is_too_deep_; }
  bool is_too_long() const { return out_.size() > max_bytes_; }
  // Returns the text of the outermost value, or its beginning if it is too long.
  std::string take_text() { return std::move(out_); }
  bool is_object() const { return is_object_; }
  // Returns the members of the outermost value, which is an object.
  std::vector<JsonMember> take_members() {
    std::vector<JsonMember> members;
    members.reserve(outermost_.size());
    for (Member& member : outermost_) {
      const std::string_view text = std::string_view(out_).substr(member.begin, member.end - member.begin);
      members.push_back({.key = std::move(member.key),
                         .text = member.is_string ? Json::parse(text).get<std::string>() : std::string(text),
                         .is_string = member.is_string});
    }
    return members;
  }

 private:
  struct Member {
    std::string key;
    size_t begin = 0, end = 0;  // of its value in out_
    bool is_string = false;
  };
  struct Container {
    bool is_object = false;
    size_t begin = 0;             // of its text in out_
    size_t place = 0;             // of the value that is being written, among the members
    std::vector<Member> members;  // of an object
    // key -> place in members; a client that knows the hash function could make a hash table slow
    std::map<std::string, size_t, std::less<>> index;
    bool has_duplicates = false;
  };

  bool place(std::string_view text) {
    begin_value();
    out_ += text;
    return end_value(false);
  }

  // Writes the text before a value: a comma, and in an object the value's key.
  void begin_value() {
    if (open_.empty()) return;
    Container& parent = open_.back();
    if (out_.size() > parent.begin + 1) out_ += ", ";
    if (!parent.is_object) return;
    out_ += quote_json(key_) + ": ";
    const auto [found, is_new] = parent.index.try_emplace(key_, parent.members.size());
    parent.place = found->second;
    parent.has_duplicates |= !is_new;
    if (is_new) parent.members.push_back({.key = std::move(key_)});
    parent.members[parent.place].begin = out_.size();
  }

  bool end_value(bool is_string) {
    if (!open_.empty() && open_.back().is_object) {
      Member& member = open_.back().members[open_.back().place];
      member.end = out_.size();
      member.is_string = is_string;
    }
    return !is_too_long();
  }

  bool open(bool is_object) {
    is_too_deep_ = open_.size() == kMaxSpelledDepth;
    if (is_too_deep_) return false;
    begin_value();
    open_.push_back({.is_object = is_object, .begin = out_.size()});
    out_ += is_object ? '{' : '[';
    return true;
  }

  bool close() {
    Container container = std::move(open_.back());
    open_.pop_back();
    if (container.has_duplicates) write_again(container);
    out_ += container.is_object ? '}' : ']';
    if (open_.empty()) {
      is_object_ = container.is_object;
      outermost_ = std::move(container.members);
    }
    return end_value(false);
  }

  // Writes an object again, with the last value of each key in the first value's place.
  void write_again(Container& container) {
    std::string text = "{";
    for (Member& member : container.members) {
      if (text.size() > 1) text += ", ";
      text += quote_json(member.key) + ": ";
      const size_t begin = container.begin + text.size();
      text.append(out_, member.begin, member.end - member.begin);
      member.begin = begin;
      member.end = container.begin + text.size();
    }
    out_.replace(container.begin, out_.npos, text);
  }

  const size_t max_bytes_;
  std::string out_;
  std::vector<Container> open_;
  std::string key_;
  std::vector<Member> outermost_;
  bool is_object_ = false;
  bool is_too_deep_ = false;
};

Result<void> read_spelling(std::string_view json, std::string_view what, Speller& speller) {
  if (Json::sax_parse(json.begin(), json.end(), &speller) || speller.is_too_long()) return {};
  if (speller.is_too_deep()) {
    return invalid_argument("{} is nested {} levels deep; at most {} are allowed", what, json_depth(json),
                            kMaxSpelledDepth);
  }
  return invalid_argument("{} is not valid JSON", what);
}

}  // namespace

std::string quote_json(std::string_view text) {
  return Json(text).dump();
}

Result<std::string> spell_json(std::string_view json, std::string_view what, size_t max_bytes) {
  Speller speller(max_bytes);
  HADAL_RETURN_IF_ERROR(read_spelling(json, what, speller));
  return speller.take_text();
}

Result<std::vector<JsonMember>> read_json_members(std::string_view json, std::string_view what) {
  if (json.size() > kMaxMembersBytes)
    return invalid_argument("{} has {} bytes; at most {} are allowed", what, json.size(), kMaxMembersBytes);
  Speller speller(std::numeric_limits<size_t>::max());
  HADAL_RETURN_IF_ERROR(read_spelling(json, what, speller));
  if (!speller.is_object()) return invalid_argument("{} is not a JSON object", what);
  return speller.take_members();
}

}  // namespace hadal
