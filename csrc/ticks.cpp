#include "ticks.h"

#include <thread>

namespace npu {
namespace {

double measure() {
  using Clock = std::chrono::steady_clock;
  const auto start_time = Clock::now();
  const uint64_t start = ticks();
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  const uint64_t elapsed = ticks() - start;
  return static_cast<double>(elapsed) / std::chrono::duration<double>(Clock::now() - start_time).count();
}

}  // namespace

double tick_rate() {
  static const double rate = measure();
  return rate;
}

}  // namespace npu
