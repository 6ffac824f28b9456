// Ends the process with a message when bytes of a mapped file cannot be read, because the file was made
// shorter or its disk failed. The kernel then sends SIGBUS to the thread that reads; a load instruction has
// no other way to fail.
#pragma once

#include <cstddef>
#include <filesystem>

namespace hadal {

// After this call, such a read ends the process with `exit_code`, after one line on stderr that names the
// file and the byte. A SIGBUS with any other cause is handled as it was before the call. Only main calls it,
// once.
void end_on_mapping_faults(int exit_code);

// While a MappingRecord lives, the signal handler can tell which file is mapped at these addresses. Any
// thread may make and destroy records, which can only be moved.
class MappingRecord {
 public:
  MappingRecord() = default;
  // `begin` and `size` are the mapping of all of `path`. Destroy or release the record before the mapping is
  // unmapped.
  MappingRecord(const std::byte* begin, size_t size, const std::filesystem::path& path);
  MappingRecord(MappingRecord&& other) noexcept;
  MappingRecord& operator=(MappingRecord&& other) noexcept;
  MappingRecord(const MappingRecord&) = delete;
  MappingRecord& operator=(const MappingRecord&) = delete;
  ~MappingRecord() { release(); }

  void release();

 private:
  struct Entry;
  friend struct MappingFaults;

  Entry* entry_ = nullptr;
};

}  // namespace hadal
