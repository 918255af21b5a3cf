// The floating-point mode that the kernels rely on, for the life of the object: round to nearest, denormal operands
// read as zero, denormal results kept (see kernels/lanes.h).
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace npu {

class FloatMode {
 public:
#if defined(__x86_64__)
  FloatMode() : saved_(_mm_getcsr()) { _mm_setcsr(kAllMasked | kDenormalsAreZero); }
  ~FloatMode() { _mm_setcsr(saved_); }
#else
  FloatMode() = default;
  ~FloatMode() {}
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
#if defined(__x86_64__)
  static constexpr unsigned kAllMasked = 0x1f80, kDenormalsAreZero = 0x0040;
  unsigned saved_;
#endif
};

}  // namespace npu
