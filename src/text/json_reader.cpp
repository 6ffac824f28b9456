#include "text/json_reader.h"

#include <algorithm>
#include <optional>

#include "text/json_error.h"

namespace hadal {

namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxDocumentDepth = 64;

// DocumentBuilder is a SAX handler that keeps the document's open containers on a stack. If `tables` is set,
// the values of model.vocab and model.merges are diverted.
class DocumentBuilder : public nlohmann::json_sax<Json> {
 public:
  DocumentBuilder(TokenizerDocument& out, bool tables, std::string_view what)
      : out_(out), tables_(tables), what_(what) {}

  std::optional<Status> error;
  bool is_too_deep = false;  // then `error` is not set

  bool null() override { return value(nullptr, "null"); }
  bool boolean(bool v) override { return value(v, "a boolean"); }
  bool number_float(double v, const std::string&) override { return value(v, "a fraction"); }
  bool number_integer(int64_t v) override {
    return mode_ == Mode::kVocab ? vocab_id(v) : value(v, "a number");
  }
  bool number_unsigned(uint64_t v) override {
    if (mode_ != Mode::kVocab) return value(v, "a number");
    return vocab_id(v > uint64_t{INT64_MAX} ? INT64_MAX : static_cast<int64_t>(v));
  }
  bool binary(Json::binary_t&) override { return fail("binary data"); }

  bool string(std::string& v) override {
    if (mode_ == Mode::kMerges) return merge_text(v);
    if (mode_ == Mode::kMergePair) return merge_part(v);
    return value(std::move(v), "a string");
  }

  bool key(std::string& v) override {
    key_ = std::move(v);
    return true;
  }

  bool start_object(size_t) override {
    if (mode_ != Mode::kDocument) return wrong_entry("an object");
    if (at_model() && key_ == "vocab") {
      if (out_.has_vocab) return fail("model.vocab appears twice");
      out_.has_vocab = true;
      mode_ = Mode::kVocab;
      return true;
    }
    return open(Json::object());
  }
  bool end_object() override {
    if (mode_ == Mode::kVocab) {
      mode_ = Mode::kDocument;
      return true;
    }
    return close();
  }

  bool start_array(size_t) override {
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kMergePair;
      pair_.clear();
      return true;
    }
    if (mode_ != Mode::kDocument) return wrong_entry("a list");
    if (at_model() && key_ == "merges") {
      if (out_.has_merges) return fail("model.merges appears twice");
      out_.has_merges = true;
      mode_ = Mode::kMerges;
      return true;
    }
    return open(Json::array());
  }
  bool end_array() override {
    if (mode_ == Mode::kMergePair) {
      mode_ = Mode::kMerges;
      if (pair_.size() != 2)
        return fail("model.merges[{}] has {} parts, not 2", out_.merges.size(), pair_.size());
      out_.merges.emplace_back(std::move(pair_[0]), std::move(pair_[1]));
      return true;
    }
    if (mode_ == Mode::kMerges) {
      mode_ = Mode::kDocument;
      return true;
    }
    return close();
  }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& e) override {
    // The library's text begins with an error id in brackets, which does not help a user.
    std::string_view text = e.what();
    if (const size_t bracket = text.find("] "); bracket != text.npos) text.remove_prefix(bracket + 2);
    error = data_loss("{}: is not valid JSON at byte {}: {}", what_, position, text);
    return false;
  }

 private:
  enum class Mode { kDocument, kVocab, kMerges, kMergePair };

  template <typename... Args>
  bool fail(fmt::format_string<Args...> format, Args&&... args) {
    error = data_loss("{}: {}", what_, fmt::format(format, std::forward<Args>(args)...));
    return false;
  }
  bool wrong_entry(std::string_view found) {
    if (mode_ == Mode::kVocab) return fail("model.vocab[\"{}\"] is {}, not an integer id", key_, found);
    return fail("model.merges[{}] contains {}; allowed are \"a b\" and [\"a\", \"b\"]", out_.merges.size(),
                found);
  }

  bool at_model() const { return tables_ && stack_.size() == 2 && in_model_ && stack_.back()->is_object(); }

  bool vocab_id(int64_t id) {
    out_.vocab.emplace_back(std::move(key_), id);
    return true;
  }
  bool merge_text(const std::string& text) {
    const size_t space = text.find(' ');
    if (space == std::string::npos || space == 0 || space + 1 == text.size() ||
        text.find(' ', space + 1) != std::string::npos)
      return fail("model.merges[{}] is \"{}\", not two tokens separated by one space", out_.merges.size(),
                  text);
    out_.merges.emplace_back(text.substr(0, space), text.substr(space + 1));
    return true;
  }
  bool merge_part(std::string& text) {
    if (pair_.size() == 2) return fail("model.merges[{}] has more than 2 parts", out_.merges.size());
    pair_.push_back(std::move(text));
    return true;
  }

  // Stores a finished scalar where it belongs.
  template <typename V>
  bool value(V&& v, std::string_view kind) {
    if (mode_ != Mode::kDocument) return wrong_entry(kind);
    place(Json(std::forward<V>(v)));
    return true;
  }
  Json* place(Json v) {
    if (stack_.empty()) {
      out_.rest = std::move(v);
      return &out_.rest;
    }
    if (stack_.back()->is_array()) {
      stack_.back()->push_back(std::move(v));
      return &stack_.back()->back();
    }
    // The member is appended without searching for its key, because searches would make large objects
    // quadratic; close() detects duplicates.
    auto& members = stack_.back()->get_ref<Json::object_t&>();
    members.emplace_back(std::move(key_), std::move(v));
    return &members.back().second;
  }
  bool open(Json container) {
    is_too_deep = stack_.size() == kMaxDocumentDepth;
    if (is_too_deep) return false;
    if (stack_.size() == 1) in_model_ = stack_[0]->is_object() && key_ == "model";
    stack_.push_back(place(std::move(container)));
    return true;
  }
  bool close() {
    if (stack_.back()->is_object()) {
      std::vector<std::string_view> keys;
      for (const auto& [key, member] : stack_.back()->get_ref<Json::object_t&>()) keys.push_back(key);
      std::sort(keys.begin(), keys.end());
      if (const auto twice = std::adjacent_find(keys.begin(), keys.end()); twice != keys.end())
        return fail("the key \"{}\" appears twice in one object", *twice);
    }
    stack_.pop_back();
    return true;
  }

  TokenizerDocument& out_;
  bool tables_;
  std::string_view what_;
  Mode mode_ = Mode::kDocument;
  std::vector<Json*> stack_;
  bool in_model_ = false;  // whether the container at depth 2 is the member "model" of the document
  std::string key_;
  std::vector<std::string> pair_;
};

Result<TokenizerDocument> read_document(std::string_view json, bool tables, std::string_view what) {
  TokenizerDocument document;
  DocumentBuilder builder(document, tables, what);
  if (!nlohmann::ordered_json::sax_parse(json.begin(), json.end(), &builder)) {
    if (builder.is_too_deep)
      return data_loss("{}: nested {} levels deep; at most {} are allowed", what, json_depth(json),
                       kMaxDocumentDepth);
    return builder.error.value_or(data_loss("{}: is not valid JSON", what));
  }
  return document;
}

}  // namespace

Result<TokenizerDocument> read_tokenizer_document(std::string_view json, std::string_view what) {
  return read_document(json, true, what);
}

Result<nlohmann::ordered_json> read_json(std::string_view json, std::string_view what) {
  HADAL_ASSIGN_OR_RETURN(TokenizerDocument document, read_document(json, false, what));
  return std::move(document.rest);
}

}  // namespace hadal
