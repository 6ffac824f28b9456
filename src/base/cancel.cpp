#include "base/cancel.h"

namespace hadal {
namespace {

thread_local const CancelScope* innermost = nullptr;

}  // namespace

CancelScope::CancelScope(const std::atomic<bool>& flag) : flag_(flag), outer_(innermost) {
  innermost = this;
}

CancelScope::~CancelScope() {
  innermost = outer_;
}

bool is_cancelled() noexcept {
  for (const CancelScope* scope = innermost; scope != nullptr; scope = scope->outer_)
    if (scope->flag_.load(std::memory_order_relaxed)) return true;
  return false;
}

void check_cancelled() {
  if (is_cancelled()) throw CancelledError();
}

}  // namespace hadal
