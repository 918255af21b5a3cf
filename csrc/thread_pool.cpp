#include "thread_pool.h"

#include <sched.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <string>

#include "float_mode.h"

namespace npu {
namespace {

constexpr uint64_t kChunkMask = (uint64_t{1} << 20) - 1;
constexpr auto kSpinTime = std::chrono::microseconds(200);

int chunks_of(uint64_t state) { return static_cast<int>(state >> 20 & kChunkMask); }
int next_of(uint64_t state) { return static_cast<int>(state & kChunkMask); }

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

ThreadPool::ThreadPool(int num_threads, bool denormals_are_zero) {
  if (num_threads <= 0) num_threads = usable_processors();
  for (int thread = 1; thread < num_threads; ++thread) {
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

bool ThreadPool::has_work() const {
  const uint64_t state = state_.load(std::memory_order_seq_cst);
  return next_of(state) < chunks_of(state);
}

bool ThreadPool::claim_and_run(int thread) {
  if (!has_work()) return false;
  const uint64_t claim = state_.fetch_add(1, std::memory_order_acq_rel);
  if (next_of(claim) >= chunks_of(claim)) return false;
  function_(context_, next_of(claim), thread);
  unfinished_.fetch_sub(1, std::memory_order_acq_rel);
  return true;
}

void ThreadPool::dispatch(int num_chunks, Function function, const void* context) {
  function_ = function;
  context_ = context;
  unfinished_.store(num_chunks, std::memory_order_relaxed);
  const uint64_t number = (state_.load(std::memory_order_relaxed) >> 40) + 1;
  state_.store(number << 40 | static_cast<uint64_t>(num_chunks) << 20, std::memory_order_seq_cst);
  if (num_sleeping_.load(std::memory_order_seq_cst) > 0) {
    const std::lock_guard lock(mutex_);
    wake_.notify_all();
  }
  while (claim_and_run(0)) {
  }
  while (unfinished_.load(std::memory_order_acquire) > 0) pause();
}

void ThreadPool::wake() {
  if (num_sleeping_.load(std::memory_order_relaxed) == 0) return;
  const std::lock_guard lock(mutex_);
  wakes_.fetch_add(1);
  wake_.notify_all();
}

void ThreadPool::work(int thread, bool denormals_are_zero) {
  const FloatMode mode(denormals_are_zero);
  auto last_job = std::chrono::steady_clock::now();
  while (!stop_.load(std::memory_order_relaxed)) {
    if (claim_and_run(thread)) {
      while (claim_and_run(thread)) {
      }
      last_job = std::chrono::steady_clock::now();
      continue;
    }
    for (int i = 0; i < 64 && !has_work(); ++i) pause();
    if (has_work() || std::chrono::steady_clock::now() - last_job < kSpinTime) continue;
    std::unique_lock lock(mutex_);
    num_sleeping_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t wakes = wakes_.load();
    wake_.wait(lock, [&] { return has_work() || stop_.load() || wakes_.load() != wakes; });
    num_sleeping_.fetch_sub(1, std::memory_order_seq_cst);
    last_job = std::chrono::steady_clock::now();
  }
}

}  // namespace npu
