// Holds the token ids of requests. All choices of one prompt share its ids: copying a TokenIds does not copy
// the ids, and a TokenSequence adds the ids that one choice has generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

namespace hadal {

// TokenIds is a list of ids that never changes and that all of its copies share. Any thread may read it.
class TokenIds {
 public:
  TokenIds() = default;
  TokenIds(std::vector<int32_t> ids)  // NOLINT(google-explicit-constructor)
      : ids_(std::make_shared<const std::vector<int32_t>>(std::move(ids))) {}
  TokenIds(std::initializer_list<int32_t> ids) : TokenIds(std::vector<int32_t>(ids)) {}

  size_t size() const { return ids_ == nullptr ? 0 : ids_->size(); }
  bool empty() const { return size() == 0; }
  const int32_t* data() const { return ids_ == nullptr ? nullptr : ids_->data(); }
  const int32_t* begin() const { return data(); }
  const int32_t* end() const { return data() + size(); }
  int32_t front() const { return *data(); }
  int32_t operator[](size_t i) const { return data()[i]; }

 private:
  std::shared_ptr<const std::vector<int32_t>> ids_;  // null: none
};

// TokenSequence is a prompt, which may be shared, followed by the ids that a request has generated, which are
// its own.
class TokenSequence {
 public:
  TokenSequence() = default;
  explicit TokenSequence(TokenIds prompt) : prompt_(std::move(prompt)) {}

  const TokenIds& prompt() const { return prompt_; }
  std::span<const int32_t> generated() const { return generated_; }
  size_t size() const { return prompt_.size() + generated_.size(); }
  int32_t operator[](size_t i) const {
    return i < prompt_.size() ? prompt_[i] : generated_[i - prompt_.size()];
  }
  void push_back(int32_t id) { generated_.push_back(id); }

  // Returns the first `count` ids (≤ size()): a view of the prompt if it has that many, otherwise of
  // `scratch`, which is overwritten with a copy of them.
  std::span<const int32_t> first(size_t count, std::vector<int32_t>& scratch) const {
    if (count <= prompt_.size()) return std::span<const int32_t>(prompt_).first(count);
    scratch.assign(prompt_.begin(), prompt_.end());
    const auto more = static_cast<std::ptrdiff_t>(count - prompt_.size());
    scratch.insert(scratch.end(), generated_.begin(), generated_.begin() + more);
    return scratch;
  }

 private:
  TokenIds prompt_;
  std::vector<int32_t> generated_;
};

}  // namespace hadal
