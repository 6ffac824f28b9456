#include "base/memory_reserve.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cstring>
#include <new>

namespace hadal {
namespace {

std::array<std::atomic<void*>, MemoryReserve::kBlocks> blocks{};
std::atomic<size_t> num_missing{0};
std::atomic<bool> installed{false};
std::new_handler previous = nullptr;

void* map_block() noexcept {
  void* const block = ::mmap(nullptr, MemoryReserve::kBlockBytes, PROT_READ | PROT_WRITE,
                             MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
  return block == MAP_FAILED ? nullptr : block;
}

bool give_up_block() noexcept {
  for (std::atomic<void*>& slot : blocks) {
    if (void* const block = slot.exchange(nullptr)) {
      ::munmap(block, MemoryReserve::kBlockBytes);
      num_missing.fetch_add(1);
      return true;
    }
  }
  return false;
}

}  // namespace

int& MemoryReserve::depth() noexcept {
  static thread_local int value = 0;
  return value;
}

void MemoryReserve::on_failure() {
  if (depth() > 0 && give_up_block()) return;
  throw std::bad_alloc();
}

MemoryReserve::MemoryReserve() {
  num_missing = kBlocks;
  installed = true;
  refill();
  previous = std::set_new_handler(&MemoryReserve::on_failure);
}

MemoryReserve::~MemoryReserve() {
  std::set_new_handler(previous);
  installed = false;
  while (give_up_block()) {
  }
  num_missing = 0;
}

void MemoryReserve::refill() noexcept {
  if (num_missing.load(std::memory_order_relaxed) == 0 || !installed) return;
  for (std::atomic<void*>& slot : blocks) {
    if (slot.load() != nullptr) continue;
    void* block = map_block();
    if (block == nullptr) return;
    void* empty = nullptr;
    if (slot.compare_exchange_strong(empty, block)) {
      num_missing.fetch_sub(1);
    } else {
      ::munmap(block, kBlockBytes);
    }
  }
}

size_t MemoryReserve::num_blocks() noexcept {
  return installed ? kBlocks - num_missing.load() : 0;
}

void write_last_line(const char* event, const char* detail) noexcept {
  const std::array<const char*, 4> parts = {event, ": ", detail, "\n"};
  std::array<iovec, 4> pieces{};
  for (size_t i = 0; i < parts.size(); ++i)
    pieces[i] = {const_cast<char*>(parts[i]), std::strlen(parts[i])};  // writev only reads
  [[maybe_unused]] const ssize_t written = ::writev(STDERR_FILENO, pieces.data(), pieces.size());
}

}  // namespace hadal
