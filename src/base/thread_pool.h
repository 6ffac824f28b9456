// ThreadPool is a fixed pool of worker threads, owned by main and passed down by reference. One thread at a
// time (the engine thread) calls parallel_for and run, and works too. Between calls the workers spin for a
// short while, then sleep, so that the dozens of small parallel regions of a decode step do not each cost a
// system call.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace hadal {

// FunctionRef is a non-owning reference to a callable: it is cheaper than std::function and allocates
// nothing.
template <typename Signature>
class FunctionRef;
template <typename R, typename... Args>
class FunctionRef<R(Args...)> {
 public:
  template <typename F>
  requires(!std::is_same_v<std::remove_cvref_t<F>, FunctionRef>)  // else a copy would refer to a reference
      FunctionRef(F&& f)                                          // NOLINT(google-explicit-constructor)
      : object_(const_cast<void*>(static_cast<const void*>(&f))), call_([](void* object, Args... args) -> R {
          return (*static_cast<std::remove_reference_t<F>*>(object))(args...);
        }) {}
  R operator()(Args... args) const { return call_(object_, args...); }

 private:
  void* object_;
  R (*call_)(void*, Args...);
};

class ThreadPool {
 public:
  // num_threads counts the calling thread, so 1 makes every call run inline. 0 means one per available core.
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return num_threads_; }

  // Calls body(thread_idx) once on each of num_threads() threads and returns when all have returned. The
  // first exception thrown by a body is rethrown here.
  void run(FunctionRef<void(int thread_idx)> body);

  // Calls body(begin, end, thread_idx) over [0, count) in chunks of at most `grain` indices, handed out on
  // demand. Results must not depend on which thread does which chunk.
  void parallel_for(int64_t count, int64_t grain,
                    FunctionRef<void(int64_t begin, int64_t end, int thread_idx)> body);

 private:
  void worker(int thread_idx);
  void call_body(int thread_idx);

  int num_threads_;
  FunctionRef<void(int)>* body_ = nullptr;
  std::atomic<uint64_t> epoch_{0};  // bumped by run() to publish body_
  std::atomic<int> pending_{0};     // workers that have not finished the current epoch
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::mutex error_mutex_;
  std::exception_ptr error_;
  std::vector<std::thread> threads_;
};

}  // namespace hadal
