// Declares the device side of exchanges between ranks, and the kernels that read the exchanged data. Each
// rank launches these functions on its own stream; docs/kernels/cuda-comm.md explains the protocol. The rules
// of kernels/cuda/launch.h hold, with one exception: exchange_flags and kernels that exchange lines wait for
// other ranks' kernels. This header includes no CUDA header.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/comm/parts.h"
#include "kernels/cuda/launch.h"

namespace hadal::cuda {

// Holds a rank's state of exchanges, in device memory that all ranks of its group can write. All of it is
// zero before the first exchange. Only exchange_flags and kernels that exchange lines use it.
struct ExchangeFlags {
  uint64_t arrived[kMaxRanks];  // arrived[r]: how many exchanges rank r has reached; rank r writes it
  // Only this rank uses the remaining fields.
  uint64_t num_exchanges;  // how many exchanges this rank has completed
  uint32_t given_up;       // not 0: a wait has failed, so later exchanges do not wait
  uint32_t blocks_ended;   // how many blocks of a running kernel that exchanges lines have ended; else 0
};

// Small parts are exchanged in lines (lines.cuh). Each rank has memory for the lines of all others.
inline constexpr int64_t kMaxLinesBytes = 128 << 10;  // largest part
inline constexpr int64_t kLinesMemory =
    2 * 2 * kMaxRanks * kMaxLinesBytes;  // two slots; a line doubles the bytes

// Holds a rank's report on the first wait that passed its deadline, in page-locked memory of the host. All
// fields are zero before that.
struct LateReport {
  uint32_t is_late;   // the other fields are valid; written last
  int32_t missing;    // the first rank that had not arrived
  uint64_t expected;  // the number of this exchange, counted from 1
  uint64_t seen;      // the last exchange at which the missing rank had arrived; 0: none
};

// Holds what a rank needs for exchanges. It is the same for all exchanges of a rank.
struct ExchangeParams {
  ExchangeFlags* flags[kMaxRanks] = {};  // [num_ranks]
  void* lines[kMaxRanks] = {};           // [num_ranks] of kLinesMemory bytes, on 16 bytes
  int rank = 0;
  int num_ranks = 0;
  LateReport* report = nullptr;    // this rank's
  const uint32_t* stop = nullptr;  // in page-locked memory: not 0 ends all waits, without a report
  int64_t deadline_ns = 0;         // of one wait
  // True if the next kernel may occupy multiprocessors while a kernel waits for other ranks. It is false
  // where ranks share a device, because the kernels that other ranks have yet to run would then find no room.
  bool early_dependents = false;
};

// Waits until all ranks have reached this exchange. Every kernel that any rank launched on its stream before
// this exchange has then ended, and kernels launched afterwards on this stream can read the results. Only one
// block of one warp waits, so that ranks which share a device do not keep each other from running.
void exchange_flags(const ExchangeParams& params, const Launch& launch);

// Adds elements [first, first + count) of the parts in float32, in order of rank, and rounds each sum once.
struct SumPartsParams {
  ExchangedParts parts;  // 16 bits per element
  int64_t first = 0;     // multiples of 8
  int64_t count = 0;
  void* sums = nullptr;  // [count] of 16 bits, on 16 bytes
  bool f16 = false;      // otherwise bf16
};
void sum_parts(const SumPartsParams& params, const Launch& launch);

// Exchanges small parts and adds them, bit-identical to exchange_flags followed by sum_parts. `part` is this
// rank's own part, in any memory of its device. All blocks wait for other ranks; there are at most 64 blocks.
struct SumLinesParams {
  ExchangeParams exchange;
  const void* part = nullptr;  // [count] of 16 bits, on 16 bytes
  int64_t count = 0;           // > 0, a multiple of 8, at most kMaxLinesBytes / 2
  void* sums = nullptr;        // [count] of 16 bits, on 16 bytes; may be `part`
  bool f16 = false;            // otherwise bf16
};
void sum_lines(const SumLinesParams& params, const Launch& launch);

// Says which rows of a part copy_parts copies: all rows, those whose owner is this rank, or those whose owner
// is the part's rank.
enum class PartRows : uint8_t { kAll, kOwnersOnly, kFromOwners };

// Copies a rectangle of bytes out of each part. Fields with an index per rank describe that rank's part.
struct CopyPartsParams {
  ExchangedParts parts;
  int64_t source[kMaxRanks] = {};        // offset of the rectangle in the part
  int64_t source_pitch[kMaxRanks] = {};  // bytes from one row to the next
  int64_t target[kMaxRanks] = {};        // offset in `out`
  int64_t row_bytes[kMaxRanks] = {};     // 0: nothing is copied
  int64_t num_rows = 0;
  std::byte* out = nullptr;
  int64_t out_pitch = 0;
  PartRows rows = PartRows::kAll;
  const int32_t* owners = nullptr;  // [num_rows] ranks, < 0: no owner; null with kAll
  int rank = 0;                     // this rank
};
void copy_parts(const CopyPartsParams& params, const Launch& launch);

// Loads the code of all kernels of this folder onto a device. Otherwise a kernel's code is loaded at its
// first launch, which waits for the running kernels, and these may in turn wait for that kernel.
void load_comm_kernels(int device);

}  // namespace hadal::cuda
