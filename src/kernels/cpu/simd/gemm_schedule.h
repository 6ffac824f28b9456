// Spreads the products of one op over the pool's threads: a list of phases, each a list of independent tasks,
// runs in one parallel region. A thread fetches tasks on demand, and fetches its next task before it runs the
// current one. So it can prefetch the weights of the panel that it will compute next, also across phases. The
// tasks of a phase start when the previous phase is complete.
//
// Only the launching thread calls it. It allocates nothing but memory from the caller's scratch.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <thread>
#include <type_traits>

#include "base/check.h"
#include "kernels/cpu/cpu_kernels.h"
#include "kernels/cpu/simd/gemm_engine.h"

namespace hadal::cpu::simd {

inline void check_layout(const MatrixWeight& w) {
  HADAL_CHECK(w.row_stride >= w.k, "row_stride {} of a [{}, {}] weight", w.row_stride, w.n, w.k);
  HADAL_CHECK(w.scales != nullptr || !has_scales(w.type), "8-bit weights need scales");
}

inline void check_weight(const MatrixWeight& w) {
  HADAL_CHECK_GT(w.k, 0);
  check_layout(w);
}

// Gate and up are read side by side, so their shape, type and stride must be equal.
inline void check_mlp_weights(const MlpWeights& weights) {
  const auto& [gate, up, down] = weights;
  check_weight(gate);
  check_weight(up);
  check_layout(down);  // its k may be 0: the intermediate size of a rank that holds nothing of the MLP
  HADAL_CHECK(up.n == gate.n && up.k == gate.k && up.type == gate.type && up.row_stride == gate.row_stride,
              "gate [{}, {}] and up [{}, {}] must be of one shape, type and stride", gate.n, gate.k, up.n,
              up.k);
  HADAL_CHECK(down.k == gate.n && down.n == gate.k, "down [{}, {}] after gate [{}, {}]", down.n, down.k,
              gate.n, gate.k);
}

template <typename T>
std::span<T> scratch_array(Context& context, int64_t count) {
  static_assert(std::is_trivially_destructible_v<T>, "objects in scratch memory are never destroyed");
  T* data =
      static_cast<T*>(context.scratch.allocate(static_cast<size_t>(std::max<int64_t>(count, 1)) * sizeof(T)));
  std::uninitialized_default_construct_n(data, count);
  return {data, static_cast<size_t>(count)};
}

// PackJob names activations that must be packed before use.
struct PackJob {
  const float* x = nullptr;  // [*, k], rows x_stride apart
  int64_t x_stride = 0;
  const int32_t* rows = nullptr;  // [m]: row indices into x; null selects the first m rows
  int64_t m = 0;
  int64_t k = 0;
  float* packed = nullptr;  // [m · k]
};

// TaskList holds items that each consist of several tasks, addressed by one running index.
template <typename Item>
class TaskList {
 public:
  TaskList() = default;
  TaskList(Context& context, int64_t capacity)
      : items_(scratch_array<Item>(context, capacity)),
        first_(scratch_array<int64_t>(context, capacity + 1)) {
    first_[0] = 0;
  }
  void add(const Item& item, int64_t num_tasks) {
    items_[num_items_] = item;
    first_[num_items_ + 1] = first_[num_items_] + num_tasks;
    ++num_items_;
  }
  int64_t num_tasks() const { return num_items_ == 0 ? 0 : first_[num_items_]; }
  struct Place {
    const Item* item;
    int64_t task;  // index within this item
  };
  Place find(int64_t task) const {
    const auto end = first_.begin() + num_items_ + 1;
    const int64_t i = std::upper_bound(first_.begin(), end, task) - first_.begin() - 1;
    return {&items_[i], task - first_[i]};
  }

 private:
  std::span<Item> items_;
  std::span<int64_t> first_;
  int64_t num_items_ = 0;
};

// An op has at most this many phases.
inline constexpr int kMaxPhases = 6;

struct PhaseTask {
  int phase = -1;  // −1: none
  int64_t task = 0;
};

struct CountOnExit {
  std::atomic<int64_t>& count;
  ~CountOnExit() { count.fetch_add(1, std::memory_order_acq_rel); }
};

// Calls body(current, next, thread_idx) for every task of every phase; num_tasks may be 0 for some phases.
template <typename Body>
void run_phases(ThreadPool& pool, std::span<const int64_t> num_tasks, const Body& body) {
  const int num_phases = static_cast<int>(num_tasks.size());
  std::array<int64_t, kMaxPhases + 1> first{};
  for (int i = 0; i < num_phases; ++i) first[i + 1] = first[i] + num_tasks[i];
  const int64_t total = first[num_phases];
  if (total == 0) return;
  const auto locate = [&](int64_t index) -> PhaseTask {
    if (index >= total) return {};
    int phase = 0;
    while (index >= first[phase + 1]) ++phase;
    return {phase, index - first[phase]};
  };
  // A task may start when all tasks of earlier phases are done. One counter is enough for all phases, because
  // no task of a later phase starts earlier.
  alignas(64) std::atomic<int64_t> next_index{0};
  alignas(64) std::atomic<int64_t> num_done{0};
  const auto work = [&](int thread_idx) {
    int64_t index = next_index.fetch_add(1, std::memory_order_relaxed);
    while (index < total) {
      const int64_t next = next_index.fetch_add(1, std::memory_order_relaxed);
      const PhaseTask current = locate(index);
      for (int spins = 0; num_done.load(std::memory_order_acquire) < first[current.phase]; ++spins) {
        if (spins > 4000) std::this_thread::yield();  // another thread has lost its core: let it run here
      }
      {
        const CountOnExit done{num_done};  // counts even if body throws, because others wait for it
        body(current, locate(next), thread_idx);
      }
      index = next;
    }
  };
  if (total == 1) {
    work(0);
  } else {
    pool.run(work);
  }
}

// GemmPlan is the usual form of an op: it packs activations, then runs products. A second list of products,
// whose inputs are the results of the first list, and a final phase of `num_final` tasks may follow.
struct GemmPlan {
  TaskList<PackJob> packs;
  TaskList<Product> products;
  TaskList<Product> second;
  int64_t max_m = 0;
};

inline void add_pack(const Engine& engine, TaskList<PackJob>& packs, const PackJob& job) {
  packs.add(job, PackedRows(job.m, engine.max_tile).num_tiles * ((job.k + kBlockDepth - 1) / kBlockDepth));
}

inline void add_product(const Engine& engine, TaskList<Product>& products, const Product& product) {
  products.add(product, num_panels(engine, product));
}

inline void run_pack_task(const Engine& engine, const TaskList<PackJob>& packs, int64_t task) {
  const auto [job, index] = packs.find(task);
  const int64_t num_blocks = (job->k + kBlockDepth - 1) / kBlockDepth;
  engine.pack_block(job->x, job->x_stride, job->rows, job->m, job->k, index / num_blocks, index % num_blocks,
                    job->packed);
}

// Runs the plan; `final_body(task)` runs after everything else.
template <typename FinalBody>
void run_plan(const GemmPlan& plan, Context& context, int64_t num_final, const FinalBody& final_body) {
  const Engine& e = engine();
  const int64_t scratch_floats = (engine_scratch_floats(e, plan.max_m) + 15) / 16 * 16;
  float* scratch = scratch_array<float>(context, scratch_floats * context.pool.num_threads()).data();
  const std::array<int64_t, 4> num_tasks = {plan.packs.num_tasks(), plan.products.num_tasks(),
                                            plan.second.num_tasks(), num_final};
  const auto panel_of = [&](const PhaseTask& t) -> PanelTask {
    if (t.phase != 1 && t.phase != 2) return {};
    const auto [product, panel] = (t.phase == 1 ? plan.products : plan.second).find(t.task);
    return {product, panel};
  };
  run_phases(context.pool, num_tasks, [&](const PhaseTask& current, const PhaseTask& next, int thread_idx) {
    if (current.phase == 0) {
      run_pack_task(e, plan.packs, current.task);
    } else if (current.phase == 3) {
      final_body(current.task);
    } else {
      e.run_panel(panel_of(current), panel_of(next), scratch + thread_idx * scratch_floats);
    }
  });
}

inline void run_plan(const GemmPlan& plan, Context& context) {
  run_plan(plan, context, 0, [](int64_t) {});
}

}  // namespace hadal::cpu::simd
