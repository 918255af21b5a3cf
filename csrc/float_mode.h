// The floating-point mode that kernels run in, for the life of the object: round to nearest, denormal results kept,
// and with `denormals_are_zero` denormal operands read as zero (see kernels/lanes.h).
#pragma once

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace npu {

class FloatMode {
 public:
#if defined(__x86_64__)
  explicit FloatMode(bool denormals_are_zero) : saved_(_mm_getcsr()) {
    _mm_setcsr(kAllMasked | (denormals_are_zero ? kDenormalsAreZero : 0));
  }
  ~FloatMode() { _mm_setcsr(saved_); }
#else
  explicit FloatMode(bool) {}
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
