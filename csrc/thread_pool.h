// Persistent workers for parts of one instruction.
//
// A job is a number of chunks that the workers and the calling thread claim one by one, so a worker that the system
// has taken off its core delays nobody but for the chunk it holds. Workers spin for a moment after a job, as the next
// one is usually microseconds away, and then sleep.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace npu {

class ThreadPool {
 public:
  // `num_threads` counts the calling thread; 0 means as many as this process may use. The workers run in the
  // FloatMode of `denormals_are_zero`.
  ThreadPool(int num_threads, bool denormals_are_zero);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Calls body(chunk, thread) for each chunk below `num_chunks`, thread < num_threads(); returns when all are done.
  // The body must not throw.
  template <class Body>
  void run(int num_chunks, const Body& body) {
    if (workers_.empty() || num_chunks < 2) {
      for (int chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
      return;
    }
    dispatch(num_chunks, [](const void* context, int chunk, int thread) {
      (*static_cast<const Body*>(context))(chunk, thread);
    }, &body);
  }

  // Let sleeping workers get ready for jobs.
  void wake();

 private:
  using Function = void (*)(const void*, int, int);

  void dispatch(int num_chunks, Function function, const void* context);
  void work(int thread, bool denormals_are_zero);
  bool claim_and_run(int thread);
  bool has_work() const;

  // One word says which chunk is next and how many there are, so that a claim is valid or not by itself: while a
  // claimed chunk is unfinished the job cannot change, so function_ and context_ are read after the claim.
  // Bits: 63..40 job number, 39..20 number of chunks, 19..0 next chunk.
  alignas(64) std::atomic<uint64_t> state_{0};
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> wakes_{0};
  Function function_ = nullptr;
  const void* context_ = nullptr;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Processors that the affinity mask and the container's quota let this process use, at least 1.
int usable_processors();

}  // namespace npu
