// Declares the device side of exchanges between ranks, and the kernels that read what was exchanged. Each
// function is launched by one rank, on its stream; docs/kernels/cuda-comm.md explains the protocol. The rules
// of kernels/cuda/launch.h hold, with one exception: exchange_flags and kernels that exchange lines wait for
// other ranks' kernels. This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/comm/parts.h"
#include "kernels/cuda/launch.h"

namespace hadal::cuda {

// Holds what a rank keeps about exchanges, in device memory that all ranks of its group can write. It is zero
// before the first exchange. Only exchange_flags and kernels that exchange lines use it.
struct ExchangeFlags {
  uint64_t arrived[kMaxRanks];  // arrived[r]: how many exchanges rank r has reached; rank r writes it
  // The rest is this rank's own.
  uint64_t num_exchanges;  // to how many it has come
  uint32_t given_up;       // not 0: a wait has failed, and later ones do not wait
  uint32_t blocks_ended;   // of a running kernel that exchanges lines; otherwise 0
};

// Small parts are exchanged in lines (lines.cuh). Each rank has memory for the lines of all others.
inline constexpr int64_t kMaxLinesBytes = 128 << 10;  // of a part
inline constexpr int64_t kLinesMemory =
    2 * 2 * kMaxRanks * kMaxLinesBytes;  // two slots; a line doubles the bytes

// Holds what a rank says about the first wait that passed its deadline, in page-locked memory of the host. It
// is zero before.
struct LateReport {
  uint32_t is_late;   // the other fields are valid; written last
  int32_t missing;    // the first rank that had not come
  uint64_t expected;  // the number of this exchange, counted from 1
  uint64_t seen;      // the last exchange that the missing rank had come to; 0: none
};

// What a rank needs to exchange. It is the same for all exchanges of a rank.
struct ExchangeParams {
  ExchangeFlags* flags[kMaxRanks] = {};  // [num_ranks]
  void* lines[kMaxRanks] = {};           // [num_ranks] of kLinesMemory bytes, on 16 bytes
  int rank = 0;
  int num_ranks = 0;
  LateReport* report = nullptr;    // this rank's
  const uint32_t* stop = nullptr;  // in page-locked memory: not 0 ends all waits, without a report
  int64_t deadline_ns = 0;         // of one wait
  // The next kernel may occupy multiprocessors while a kernel waits for other ranks. False where ranks share
  // a device, because what another rank has yet to run would then find no room.
  bool early_dependents = false;
};

// Comes to the next exchange: everything that was launched on this stream before, on this and on all other
// ranks, has then ended and can be read by what is launched on this stream afterwards. One block of one warp
// waits, so that ranks which share a device do not keep each other from running.
void exchange_flags(const ExchangeParams& params, const Launch& launch);

// Adds elements [first, first + count) of the parts in float32, in order of rank, and rounds each sum once.
struct SumPartsParams {
  ExchangedParts parts;  // 16 bits an element
  int64_t first = 0;     // multiples of 8
  int64_t count = 0;
  void* sums = nullptr;  // [count] of 16 bits, on 16 bytes
  bool f16 = false;      // otherwise bf16
};
void sum_parts(const SumPartsParams& params, const Launch& launch);

// Does an exchange and adds small parts, with the bits of exchange_flags and sum_parts: `part` is this rank's
// own, in any memory of its device. All blocks wait for other ranks; there are at most 64.
struct SumLinesParams {
  ExchangeParams exchange;
  const void* part = nullptr;  // [count] of 16 bits, on 16 bytes
  int64_t count = 0;           // > 0, a multiple of 8, at most kMaxLinesBytes / 2
  void* sums = nullptr;        // [count] of 16 bits, on 16 bytes; may be `part`
  bool f16 = false;            // otherwise bf16
};
void sum_lines(const SumLinesParams& params, const Launch& launch);

// Says which rows of a part CopyParts copies: all of them; those whose owner is this rank; or those whose
// owner is the part's rank.
enum class PartRows : uint8_t { kAll, kOwnersOnly, kFromOwners };

// Copies a rectangle of bytes out of each part. Fields with an index per rank describe that rank's part.
struct CopyPartsParams {
  ExchangedParts parts;
  int64_t source[kMaxRanks] = {};        // offset of the rectangle in the part
  int64_t source_pitch[kMaxRanks] = {};  // from row to row
  int64_t target[kMaxRanks] = {};        // offset in `out`
  int64_t row_bytes[kMaxRanks] = {};     // 0: nothing is copied
  int64_t num_rows = 0;
  std::byte* out = nullptr;
  int64_t out_pitch = 0;
  PartRows rows = PartRows::kAll;
  const int32_t* owners = nullptr;  // [num_rows] ranks, < 0: nobody's; null with kAll
  int rank = 0;                     // this one
};
void copy_parts(const CopyPartsParams& params, const Launch& launch);

// Loads the code of all kernels of this folder onto a device. A kernel that is loaded at its first launch
// waits for kernels that are running, and these may wait for it.
void load_comm_kernels(int device);

}  // namespace hadal::cuda
