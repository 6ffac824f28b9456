// Declares every op family on the CPU, twice: `reference` (naive loops, the oracle) and `simd` (Highway,
// dispatched at run time). Both accept the same params and follow the same numerics (stated in
// kernels/params), so that linear, norm, RoPE, gate, MoE and the indexer agree bit for bit and attention
// agrees within rounding. One thread calls at a time; the pool's threads share the work.
#pragma once

#include <cstddef>
#include <span>

#include "base/thread_pool.h"
#include "kernels/params/elementwise.h"
#include "kernels/params/indexer.h"
#include "kernels/params/linear.h"
#include "kernels/params/mla.h"
#include "kernels/params/moe.h"

namespace hadal::cpu {

// Scratch is memory of the caller. It grows on demand and is kept, so that a warm step allocates nothing.
class Scratch {
 public:
  virtual ~Scratch() = default;
  // Returns uninitialised bytes, aligned to 64 and valid until the kernel returns. Only the launching thread
  // may call it.
  virtual void* allocate(size_t size_bytes) = 0;
};

struct Context {
  ThreadPool& pool;
  Scratch& scratch;
};

#define HADAL_CPU_KERNELS                                    \
  void embedding(const EmbeddingParams&, Context&);          \
  void rms_norm(const RmsNormParams&, Context&);             \
  void rope(const RopeParams&, Context&);                    \
  void linear(const LinearParams&, Context&);                \
  void batched_linear(const BatchedLinearParams&, Context&); \
  void mlp(const MlpParams&, Context&);                      \
  void gate(const GateParams&, Context&);                    \
  void moe(const MoeParams&, Context&);                      \
  void kv_write(const KvWriteParams&, Context&);             \
  void mla_decode(const MlaDecodeParams&, Context&);         \
  void mla_prefill(const MlaPrefillParams&, Context&);       \
  void index_write(const IndexWriteParams&, Context&);       \
  void index_query(const IndexQueryParams&, Context&);       \
  void index_select(const IndexSelectParams&, Context&);

namespace reference {
HADAL_CPU_KERNELS
}
namespace simd {
HADAL_CPU_KERNELS
// Computes several products of one x (same x, m, x_stride and k) in one parallel region, with results
// bit-identical to those of `linear`.
void linear_group(std::span<const LinearParams> group, Context& context);
// Names the instruction set that run-time dispatch chose, e.g. "AVX3_DL".
const char* target_name();
}  // namespace simd

#undef HADAL_CPU_KERNELS

}  // namespace hadal::cpu
