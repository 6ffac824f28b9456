// Holds the token ids of requests. All choices of one prompt share its ids: copying a TokenIds does not copy
// the ids, and a TokenSequence adds the ids that one choice has generated.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <mutex>
#include <span>
#include <utility>
#include <vector>

namespace hadal {

// TokenIds is a list of ids that never changes and that all of its copies share. Any thread may read it.
class TokenIds {
 public:
  TokenIds() = default;
  TokenIds(std::vector<int32_t> ids)  // NOLINT(google-explicit-constructor)
      : shared_(std::make_shared<Shared>(std::move(ids))) {}
  TokenIds(std::initializer_list<int32_t> ids) : TokenIds(std::vector<int32_t>(ids)) {}

  size_t size() const { return shared_ == nullptr ? 0 : shared_->ids.size(); }
  bool empty() const { return size() == 0; }
  const int32_t* data() const { return shared_ == nullptr ? nullptr : shared_->ids.data(); }
  const int32_t* begin() const { return data(); }
  const int32_t* end() const { return data() + size(); }
  int32_t front() const { return *data(); }
  int32_t operator[](size_t i) const { return data()[i]; }

  // Returns each id once, in ascending order. No id may be negative. All copies share the result, which the
  // first call computes in time that is linear in the number of ids and in the largest of them.
  std::span<const int32_t> distinct() const {
    if (shared_ == nullptr) return {};
    std::call_once(shared_->once, [&] { shared_->distinct = distinct_of(shared_->ids); });
    return shared_->distinct;
  }

 private:
  static std::vector<int32_t> distinct_of(const std::vector<int32_t>& ids) {
    std::vector<bool> occurs;
    size_t count = 0;
    for (const int32_t id : ids) {
      const auto at = static_cast<size_t>(id);
      if (at >= occurs.size()) occurs.resize(at + 1);
      count += occurs[at] ? 0 : 1;
      occurs[at] = true;
    }
    std::vector<int32_t> out;
    out.reserve(count);
    for (size_t i = 0; i < occurs.size(); ++i) {
      if (occurs[i]) out.push_back(static_cast<int32_t>(i));
    }
    return out;
  }

  struct Shared {
    explicit Shared(std::vector<int32_t> list) : ids(std::move(list)) {}
    const std::vector<int32_t> ids;
    std::once_flag once;
    std::vector<int32_t> distinct;  // set by the first call of distinct()
  };
  std::shared_ptr<Shared> shared_;  // null: none
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
