// Vectors of fp32 and int32 in the width that this translation unit is compiled for.
//
// Included by each kernel set; everything lives in an unnamed namespace, so that code made for one CPU cannot be
// linked into another set. The x86 sets rely on DAZ: an fp32 operation then reads denormals as signed zero, which is
// the machine's input flush, and also the output flush of every intermediate that only feeds another fp32 operation.
// What is stored, or looked at as bits, goes through finish() or flush(). FTZ stays off: it would flush before
// rounding, and the machine keeps a product that rounds up to 2^-126. The generic set flushes each result itself and
// runs in the default mode of any CPU.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../kernels.h"

#define NPU_INLINE inline __attribute__((always_inline))

namespace npu {
namespace {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
#elif defined(__AVX2__)
constexpr int kLanes = 8;
#else
constexpr int kLanes = 4;
#endif

#if defined(__AVX2__)
constexpr bool kDenormalsAreZero = true;
#else
constexpr bool kDenormalsAreZero = false;
#endif

typedef float F __attribute__((vector_size(kLanes * 4)));
typedef int32_t I __attribute__((vector_size(kLanes * 4)));
typedef uint32_t U __attribute__((vector_size(kLanes * 4)));
typedef U UnalignedU __attribute__((aligned(1), may_alias));

constexpr int32_t kSign = INT32_MIN;
constexpr int32_t kMagnitude = 0x7fffffff;
constexpr int32_t kExponent = 0x7f800000;
constexpr int32_t kFraction = 0x007fffff;
constexpr int32_t kCanonicalNan = 0x7fc00000;

NPU_INLINE I splat(int32_t x) { return I{} + x; }
NPU_INLINE F splat_bits(uint32_t bits) { return (F)splat(static_cast<int32_t>(bits)); }
NPU_INLINE F splat(float x) { return F{} + x; }
NPU_INLINE I bits(F x) { return (I)x; }
NPU_INLINE F value(I x) { return (F)x; }

NPU_INLINE F load(const uint32_t* p) { return (F) * reinterpret_cast<const UnalignedU*>(p); }
NPU_INLINE void store(uint32_t* p, F x) { *reinterpret_cast<UnalignedU*>(p) = (U)x; }

#if defined(__AVX512F__)

using M = __mmask16;
NPU_INLINE M first(int64_t n) { return static_cast<M>((1u << n) - 1); }
NPU_INLINE F load(const uint32_t* p, int64_t n) { return (F)_mm512_maskz_loadu_epi32(first(n), p); }
NPU_INLINE void store(uint32_t* p, F x, int64_t n) { _mm512_mask_storeu_epi32(p, first(n), (__m512i)x); }
NPU_INLINE F keep_first(F x, int64_t n) { return (F)_mm512_maskz_mov_ps(first(n), (__m512)x); }
NPU_INLINE M less(F a, F b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_LT_OQ); }
NPU_INLINE M not_less(F a, F b) { return _mm512_cmp_ps_mask((__m512)a, (__m512)b, _CMP_GE_OQ); }
NPU_INLINE M is_nan(F x) { return _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_UNORD_Q); }
NPU_INLINE M less(I a, I b) { return _mm512_cmplt_epi32_mask((__m512i)a, (__m512i)b); }
NPU_INLINE M equal(I a, I b) { return _mm512_cmpeq_epi32_mask((__m512i)a, (__m512i)b); }
NPU_INLINE I select(M m, I a, I b) { return (I)_mm512_mask_mov_epi32((__m512i)b, m, (__m512i)a); }
NPU_INLINE F select(M m, F a, F b) { return (F)_mm512_mask_mov_ps((__m512)b, m, (__m512)a); }
NPU_INLINE unsigned mask_bits(M m) { return m; }
NPU_INLINE I max(I a, I b) { return (I)_mm512_max_epi32((__m512i)a, (__m512i)b); }
NPU_INLINE I min(I a, I b) { return (I)_mm512_min_epi32((__m512i)a, (__m512i)b); }
NPU_INLINE F to_float(I x) { return (F)_mm512_cvtepi32_ps((__m512i)x); }
NPU_INLINE void store_bytes(int8_t* p, I x) {
  _mm_storeu_si128(reinterpret_cast<__m128i*>(p), _mm512_cvtepi32_epi8((__m512i)x));
}
NPU_INLINE int32_t max_lane(I x) { return _mm512_reduce_max_epi32((__m512i)x); }

#else

using M = I;  // all ones where true
NPU_INLINE F load(const uint32_t* p, int64_t n) {
  uint32_t buffer[kLanes] = {};
  for (int64_t i = 0; i < n; ++i) buffer[i] = p[i];
  return load(buffer);
}
NPU_INLINE void store(uint32_t* p, F x, int64_t n) {
  uint32_t buffer[kLanes];
  store(buffer, x);
  for (int64_t i = 0; i < n; ++i) p[i] = buffer[i];
}
NPU_INLINE F keep_first(F x, int64_t n) {
  uint32_t buffer[kLanes];
  store(buffer, x);
  return load(buffer, n);
}
NPU_INLINE M less(F a, F b) { return (M)(a < b); }
NPU_INLINE M not_less(F a, F b) { return (M)(a >= b); }
NPU_INLINE M is_nan(F x) { return (M)((bits(x) & kMagnitude) > kExponent); }
NPU_INLINE M less(I a, I b) { return (M)(a < b); }
NPU_INLINE M equal(I a, I b) { return (M)(a == b); }
NPU_INLINE I select(M m, I a, I b) { return (a & m) | (b & ~m); }
NPU_INLINE F select(M m, F a, F b) { return value(select(m, bits(a), bits(b))); }
NPU_INLINE unsigned mask_bits(M m) {
  unsigned result = 0;
  for (int i = 0; i < kLanes; ++i) result |= m[i] ? 1u << i : 0u;
  return result;
}
NPU_INLINE I max(I a, I b) { return select(less(a, b), b, a); }
NPU_INLINE I min(I a, I b) { return select(less(a, b), a, b); }
NPU_INLINE F to_float(I x) { return __builtin_convertvector(x, F); }
NPU_INLINE void store_bytes(int8_t* p, I x) {
  for (int i = 0; i < kLanes; ++i) p[i] = static_cast<int8_t>(x[i]);
}
NPU_INLINE int32_t max_lane(I x) {
  int32_t result = x[0];
  for (int i = 1; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
}

#endif

// Denormals to signed zero; every other pattern stays.
NPU_INLINE F flush(F x) {
  const I b = bits(x);
  return value(select(equal(b & kExponent, I{}), b & kSign, b));
}

// An operand as it enters arithmetic, and the result of one operation.
NPU_INLINE F operand(F x) { return kDenormalsAreZero ? x : flush(x); }
NPU_INLINE F rounded(F x) { return kDenormalsAreZero ? x : flush(x); }
NPU_INLINE F add(F a, F b) { return rounded(a + b); }
NPU_INLINE F sub(F a, F b) { return rounded(a - b); }
NPU_INLINE F mul(F a, F b) { return rounded(a * b); }

// What is written: flushed, and any NaN the canonical one.
#if defined(__AVX512F__)
NPU_INLINE F finish(F x) {
  // DAZ makes a product with one the flush; the compiler must not see that it is one. Lanes without the mask are NaN.
  __m512 one = _mm512_set1_ps(1.0f);
  asm("" : "+v"(one));
  const M ordered = _mm512_cmp_ps_mask((__m512)x, (__m512)x, _CMP_ORD_Q);
  return (F)_mm512_mask_mul_ps((__m512)splat(kCanonicalNan), ordered, (__m512)x, one);
}
#else
NPU_INLINE F finish(F x) { return select(is_nan(x), value(splat(kCanonicalNan)), flush(x)); }
#endif

// The total order of max and min as an order of signed integers, and back.
NPU_INLINE I order_key(I b) { return b ^ ((b >> 31) & kMagnitude); }

}  // namespace
}  // namespace npu
