// A rule of the machine broken by a program: thrown where it is noticed, completed with pc and words by the run loop.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace npu {

struct Fault : std::runtime_error {
  using std::runtime_error::runtime_error;
};

// printf-style; the sentence names the value and its limit.
[[noreturn]] __attribute__((format(printf, 1, 2), cold)) void fault(const char* format, ...);

}  // namespace npu
