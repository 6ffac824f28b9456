#include "base/mapping_faults.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <string>
#include <utility>

#include "base/printable.h"
#include "base/signal_line.h"

namespace hadal {

// Entry is a node of the list that the handler reads. Entries are never freed, so a reader may follow `next`
// at any time; an entry is reused once its file is no longer mapped.
struct MappingRecord::Entry {
  static constexpr size_t kNameBytes = 1024;

  Entry* next = nullptr;             // constant once the entry is in the list
  bool used = false;                 // guarded by the list's mutex
  std::atomic<uint32_t> version{0};  // odd while the fields below change
  std::atomic<const std::byte*> begin{nullptr};
  std::atomic<size_t> size{0};  // 0: no mapping
  std::atomic<size_t> name_bytes{0};
  char name[kNameBytes] = {};  // printable, so that the handler can write it as it is
};

// Holds the list and the handler. They are static, because we cannot pass arguments to a signal handler.
struct MappingFaults {
  using Entry = MappingRecord::Entry;

  static inline std::mutex mutex;  // held by threads that change the list
  static inline std::atomic<Entry*> first{nullptr};
  static inline std::atomic<int> exit_code{1};
  static inline struct sigaction before = {};

  static Entry* find(const std::byte* address, size_t& offset, size_t& size);
  static void end(const Entry& entry, size_t offset, size_t size);
  static void on_signal(int signal, siginfo_t* info, void* context);
};

static_assert(std::atomic<size_t>::is_always_lock_free && std::atomic<const std::byte*>::is_always_lock_free,
              "used in a signal handler");

MappingFaults::Entry* MappingFaults::find(const std::byte* address, size_t& offset, size_t& size) {
  for (Entry* entry = first.load(); entry != nullptr; entry = entry->next) {
    const uint32_t version = entry->version.load();
    const std::byte* const begin = entry->begin.load();
    size = entry->size.load();
    // An entry that is changing is not the one we look for, because no mapping is released while a thread
    // reads from it.
    if (version % 2 != 0 || entry->version.load() != version) continue;
    // The last page is mapped as a whole, so its bytes after the end of the file belong to it as well.
    const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
    const auto distance = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(begin);
    if (size == 0 || address < begin || distance >= (size + page - 1) / page * page) continue;
    offset = distance;
    return entry;
  }
  return nullptr;
}

void MappingFaults::end(const Entry& entry, size_t offset, size_t size) {
  begin_ending();
  SignalLine line;
  line.add("hadal: error: ");
  line.add({entry.name, entry.name_bytes.load()});
  line.add(": byte ");
  line.add(offset);
  line.add(" of ");
  line.add(size);
  line.add(" cannot be read: the file was made shorter while it was in use, or its disk failed\n");
  line.write_to_stderr();
  ::_exit(exit_code.load());
}

void MappingFaults::on_signal(int signal, siginfo_t* info, void* context) {
  const bool from_kernel = info->si_code > 0;
  size_t offset = 0;
  size_t size = 0;
  if (from_kernel) {
    const Entry* const entry = find(static_cast<const std::byte*>(info->si_addr), offset, size);
    if (entry != nullptr) end(*entry, offset, size);
  }
  if ((before.sa_flags & SA_SIGINFO) != 0) return before.sa_sigaction(signal, info, context);
  // After this handler returns, the read faults again by itself, but a signal that a process has sent must be
  // raised again.
  ::sigaction(signal, &before, nullptr);
  if (!from_kernel) ::raise(signal);
}

void end_on_mapping_faults(int exit_code) {
  MappingFaults::exit_code = exit_code;
  struct sigaction action = {};
  action.sa_sigaction = &MappingFaults::on_signal;
  action.sa_flags = SA_SIGINFO;
  sigemptyset(&action.sa_mask);
  ::sigaction(SIGBUS, &action, &MappingFaults::before);
}

MappingRecord::MappingRecord(const std::byte* begin, size_t size, const std::filesystem::path& path) {
  // The end of a long name says more than its beginning.
  std::string name = printable(path.string());
  if (name.size() > Entry::kNameBytes) name = "..." + name.substr(name.size() - Entry::kNameBytes + 3);

  const std::lock_guard lock(MappingFaults::mutex);
  Entry* entry = MappingFaults::first.load();
  while (entry != nullptr && entry->used) entry = entry->next;
  const bool is_new = entry == nullptr;
  if (is_new) {
    entry = new Entry;
    entry->next = MappingFaults::first.load();
  }
  entry->used = true;
  entry->version.fetch_add(1);
  std::memcpy(entry->name, name.data(), name.size());
  entry->name_bytes = name.size();
  entry->begin = begin;
  entry->size = size;
  entry->version.fetch_add(1);
  if (is_new) MappingFaults::first = entry;
  entry_ = entry;
}

void MappingRecord::release() {
  if (entry_ == nullptr) return;
  const std::lock_guard lock(MappingFaults::mutex);
  entry_->version.fetch_add(1);
  entry_->size = 0;
  entry_->version.fetch_add(1);
  entry_->used = false;
  entry_ = nullptr;
}

MappingRecord::MappingRecord(MappingRecord&& other) noexcept : entry_(std::exchange(other.entry_, nullptr)) {}

MappingRecord& MappingRecord::operator=(MappingRecord&& other) noexcept {
  std::swap(entry_, other.entry_);
  return *this;
}

}  // namespace hadal
