// Chooses the algorithm of a collective of ranks on GPUs from its size and the number of ranks, and computes
// the bytes that it moves and its modelled time. These are pure functions of numbers that all ranks have, so
// that all ranks decide alike. Every build has them.
#pragma once

#include <cstdint>
#include <string>

namespace hadal {

enum class CollectiveOp : uint8_t { kAllReduce, kReduceScatter, kAllGather, kAllToAll };
const char* to_string(CollectiveOp op);

// With kOneShot there is one exchange, after which each rank reads all that it needs from all others. With
// kTwoShot each rank sums one slice over all ranks, and a second exchange gathers the sums.
enum class CollectiveAlgorithm : uint8_t { kNothing, kOneShot, kTwoShot };
const char* to_string(CollectiveAlgorithm algorithm);

// Holds the measured figures of the model, from two H200s of one host, connected by 18 links of NVLink 4,
// inside CUDA graphs, 2026-11-22: an exchange of flags in peer memory takes 3.3 µs; one GPU reads the memory
// of another at 372 to 392 GB/s.
struct LinkFigures {
  double exchange_us = 3.3;        // a
  double gigabytes_per_s = 380.0;  // b
};

struct CollectiveChoice {
  CollectiveOp op = CollectiveOp::kAllReduce;
  int64_t bytes = 0;  // S, see choose_collective
  int ranks = 1;      // T
  CollectiveAlgorithm algorithm = CollectiveAlgorithm::kNothing;
  int num_exchanges = 0;
  int64_t bytes_received = 0;  // by each rank, from all others
  double us = 0.0;             // modelled
};

// Returns the modelled microseconds of one exchange after which a rank reads `bytes_from_each` bytes from
// each of the others: a + (T − 1) · bytes_from_each / b; 0 for one rank.
double exchange_us(int64_t bytes_from_each, int ranks, const LinkFigures& link = {});

// Returns the algorithm that is faster in the model, or one-shot if both are equally fast. `bytes` is S: the
// size of the rows that are summed (all-reduce, reduce-scatter), what each rank contributes (all-gather), or
// what each rank sends to all ranks together (all-to-all). Throws if `bytes` is negative or `ranks` is not in
// 1 to 8. The modelled times are
// - one-shot all-reduce, and all-gather: a + (T − 1) · S / b;
// - two-shot all-reduce: 2a + 2 · (T − 1) / T · S / b;
// - reduce-scatter, and all-to-all: a + (T − 1) / T · S / b.
CollectiveChoice choose_collective(CollectiveOp op, int64_t bytes, int ranks, const LinkFigures& link = {});

// Returns one line: "all_reduce of 14336 bytes over 2 ranks: one-shot, 14336 bytes received, 3.34 us".
std::string describe(const CollectiveChoice& choice);

}  // namespace hadal
