// Persistent workers for parts of one instruction.
//
// A job is a number of chunks. Each thread begins with a contiguous share, so that its memory accesses stay one
// stream, and then takes chunks that others have not begun; a worker that the system has taken off its core delays a
// job only by the chunk it holds. Where other programs want the cores, even that is milliseconds: after such a stall
// the calling thread works alone for a while. Workers spin for a moment after a job, as the next one is usually
// microseconds away, and then sleep.
#pragma once

#include <atomic>
#include <chrono>
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

  int num_threads() const { return num_threads_; }

  // Calls body(chunk, thread) for each chunk below `num_chunks`, thread < num_threads(); returns when all are done.
  // The body must not throw.
  template <class Body>
  void run(int num_chunks, const Body& body) {
    if (num_threads_ == 1 || num_chunks < 2 || alone()) {
      for (int chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
      return;
    }
    dispatch(num_chunks, [](const void* context, int chunk, int thread) {
      (*static_cast<const Body*>(context))(chunk, thread);
    }, &body);
  }

  // Let sleeping workers get ready for jobs; to be called by the thread that will call run().
  void wake();

 private:
  using Function = void (*)(const void*, int, int);
  using Clock = std::chrono::steady_clock;

  // Chunks that nobody has begun: the next one in the low half, the end in the high half. A claim is an addition,
  // valid if its old value says so: while a chunk is unfinished the job cannot change, so a thread reads function_
  // and context_ after its claim, and a late claim of an old job is merely one of the new job.
  struct alignas(64) Share {
    std::atomic<uint64_t> chunks{0};
  };

  bool alone() { return alone_ && still_alone(); }
  bool still_alone();
  void dispatch(int num_chunks, Function function, const void* context);
  void wait_for_workers();
  void work(int thread, bool denormals_are_zero);
  // Runs chunks, first of this thread's share, until none is left that nobody has begun.
  void run_chunks(int thread);
  void sleep();

  int num_threads_;
  std::unique_ptr<Share[]> shares_;
  alignas(64) std::atomic<uint32_t> job_{0};
  alignas(64) std::atomic<int> unfinished_{0};
  alignas(64) std::atomic<int> num_sleeping_{0};
  std::atomic<bool> stop_{false};
  std::atomic<uint32_t> wakes_{0};
  std::atomic<int> caller_processor_{-1};
  std::atomic<bool> crowded_{false};  // a worker found itself on the caller's processor
  Function function_ = nullptr;
  const void* context_ = nullptr;
  // Of the calling thread only: when it last woke workers, whether it works alone, and until when.
  Clock::time_point last_wake_{};
  bool alone_ = false;
  Clock::time_point alone_until_{};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::thread> workers_;
};

// Processors that the affinity mask and the container's quota let this process use, at least 1.
int usable_processors();

}  // namespace npu
