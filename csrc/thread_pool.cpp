#include "thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "float_mode.h"

namespace npu {
namespace {

// Between two runs of one stream the host works for a few tenths of a millisecond.
constexpr auto kSpinTime = std::chrono::microseconds(500);
// Between attempts to wake workers that had no processor of their own.
constexpr auto kCrowdedInterval = std::chrono::milliseconds(2);
// Waiting so long for a chunk that takes a few microseconds means that another program has its worker's processor. Less
// is what a server's event loop takes in passing.
constexpr auto kStall = std::chrono::microseconds(400);
// Time alone after a stall, in multiples of it: so stalls cost a ninth of the time at most.
constexpr int kAloneFactor = 8;

constexpr uint32_t next_of(uint64_t chunks) { return static_cast<uint32_t>(chunks); }
constexpr uint32_t end_of(uint64_t chunks) { return static_cast<uint32_t>(chunks >> 32); }

void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

int quota_processors() {
  std::ifstream file("/sys/fs/cgroup/cpu.max");
  std::string quota;
  double period = 0;
  if (!(file >> quota >> period) || quota == "max" || period <= 0) return 1 << 20;
  return std::max(1, static_cast<int>(std::stod(quota) / period));
}

}  // namespace

int usable_processors() {
  cpu_set_t set;
  int count = static_cast<int>(std::thread::hardware_concurrency());
  if (sched_getaffinity(0, sizeof set, &set) == 0) count = CPU_COUNT(&set);
  return std::max(1, std::min(count, quota_processors()));
}

ThreadPool::ThreadPool(int num_threads, bool denormals_are_zero)
    : num_threads_(num_threads > 0 ? num_threads : usable_processors()), shares_(new Share[num_threads_]) {
  for (int thread = 1; thread < num_threads_; ++thread) {
    workers_.emplace_back([this, thread, denormals_are_zero] { work(thread, denormals_are_zero); });
  }
}

ThreadPool::~ThreadPool() {
  stop_ = true;
  {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  for (std::thread& worker : workers_) worker.join();
}

void ThreadPool::run_chunks(int thread) {
  for (int i = 0; i < num_threads_; ++i) {
    std::atomic<uint64_t>& chunks = shares_[(thread + i) % num_threads_].chunks;
    for (;;) {
      const uint64_t seen = chunks.load(std::memory_order_relaxed);
      if (next_of(seen) >= end_of(seen)) break;
      const uint64_t claim = chunks.fetch_add(1, std::memory_order_acq_rel);
      if (next_of(claim) >= end_of(claim)) break;
      function_(context_, static_cast<int>(next_of(claim)), thread);
      unfinished_.fetch_sub(1, std::memory_order_acq_rel);
    }
  }
}

void ThreadPool::dispatch(int num_chunks, Function function, const void* context) {
  function_ = function;
  context_ = context;
  unfinished_.store(num_chunks, std::memory_order_relaxed);
  for (int64_t thread = 0; thread < num_threads_; ++thread) {
    const uint64_t begin = static_cast<uint64_t>(num_chunks * thread / num_threads_);
    const uint64_t end = static_cast<uint64_t>(num_chunks * (thread + 1) / num_threads_);
    shares_[thread].chunks.store(end << 32 | begin, std::memory_order_release);
  }
  job_.fetch_add(1, std::memory_order_release);
  if (num_sleeping_.load(std::memory_order_relaxed) > 0) wake();
  run_chunks(0);
  wait_for_workers();
}

void ThreadPool::wait_for_workers() {
  const auto done = [&] { return unfinished_.load(std::memory_order_acquire) == 0; };
  for (int i = 0; i < 256; ++i) {
    if (done()) return;
    pause();
  }
  const auto start = Clock::now();
  while (!done()) pause();
  const auto end = Clock::now();
  if (end - start < kStall) return;
  alone_until_ = end + kAloneFactor * (end - start);
  alone_ = true;
}

bool ThreadPool::still_alone() {
  alone_ = Clock::now() < alone_until_;
  return alone_;
}

void ThreadPool::wake() {
  caller_processor_.store(sched_getcpu(), std::memory_order_relaxed);
  if (num_sleeping_.load(std::memory_order_relaxed) == 0 || alone()) return;
  if (crowded_.load(std::memory_order_relaxed)) {
    const auto now = Clock::now();
    if (now - last_wake_ < kCrowdedInterval) return;
    last_wake_ = now;
    crowded_.store(false, std::memory_order_relaxed);
  }
  const std::lock_guard lock(mutex_);
  wakes_.fetch_add(1);
  wake_.notify_all();
}

void ThreadPool::work(int thread, bool denormals_are_zero) {
  const FloatMode mode(denormals_are_zero);
  uint32_t seen = 0;
  auto last_job = Clock::now();
  while (!stop_.load(std::memory_order_relaxed)) {
    for (int i = 0; i < 64 && job_.load(std::memory_order_acquire) == seen; ++i) pause();
    if (const uint32_t job = job_.load(std::memory_order_acquire); job != seen) {
      seen = job;
      run_chunks(thread);
      last_job = Clock::now();
    } else if (sched_getcpu() == caller_processor_.load(std::memory_order_relaxed)) {
      // Spinning on the caller's own processor would keep it from running.
      crowded_.store(true, std::memory_order_relaxed);
      sleep();
      last_job = Clock::now();
    } else if (Clock::now() - last_job > kSpinTime) {
      sleep();
      last_job = Clock::now();
    }
  }
}

void ThreadPool::sleep() {
  std::unique_lock lock(mutex_);
  num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
  const uint32_t wakes = wakes_.load();
  wake_.wait(lock, [&] { return stop_.load() || wakes_.load() != wakes; });
  num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
}

}  // namespace npu
