// Ends the process with a message when bytes of a mapped file cannot be read, because the file was made
// shorter or its disk failed. The kernel then sends SIGBUS to the thread that reads; a load instruction has
// no other way to fail.
#pragma once

#include <cstddef>
#include <filesystem>

namespace hadal {

// From this call on such a read ends the process with `exit_code`, after one line on stderr that names the
// file and the byte. A SIGBUS from elsewhere does what it did before. Only main calls it, once.
void end_on_mapping_faults(int exit_code);

// While this object lives, the signal's handler knows whose memory this is. Any thread may make and destroy
// such objects, which can only be moved.
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
