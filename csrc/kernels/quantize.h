// Quantization of TMEM rows to int8 blocks: the arithmetic of QACT and QST.
#pragma once

#include "functions.h"

namespace npu {
namespace {

constexpr uint32_t kOneOver127 = 0x3c010204;

// Element vector c of the row after its factors: (x * row) * column, each product rounded.
NPU_INLINE F scaled(const QuantizeJob& job, int64_t c) {
  F x = operand(load(job.src + c));
  if (job.row_scale) x = mul(x, operand(splat_bits(*job.row_scale)));
  if (job.column_scale) x = mul(x, operand(load(job.column_scale + c)));
  return x;
}

// Largest magnitude as an integer, flushed: a denormal is only the largest where all are zero or denormal.
NPU_INLINE int32_t max_magnitude(const QuantizeJob& job, int64_t begin, int64_t end) {
  I largest{};
  for (int64_t c = begin; c < end; c += kLanes) largest = max(largest, bits(scaled(job, c)) & kMagnitude);
  const int32_t result = max_lane(largest);
  return result & kExponent ? result : 0;
}

// Half to even, clamped to +-127, NaN to 0. Clamping before rounding is the same, the limits being integers.
NPU_INLINE I quantized(F y) {
#if defined(__AVX512F__)
  const M ordered = _mm512_cmp_ps_mask((__m512)y, (__m512)y, _CMP_ORD_Q);
  const __m512 low = _mm512_max_ps((__m512)y, _mm512_set1_ps(-127.0f));
  return (I)_mm512_maskz_cvtps_epi32(ordered, _mm512_min_ps(low, _mm512_set1_ps(127.0f)));
#else
  const F low = select(less(y, splat(-127.0f)), splat(-127.0f), y);
  const F clamped = select(less(splat(127.0f), low), splat(127.0f), low);
  const F number = select(is_nan(clamped), F{}, clamped);
  const F magic = splat(12582912.0f);
  return bits(number + magic) - bits(magic);
#endif
}

NPU_INLINE void quantize_range(const QuantizeJob& job, int64_t begin, int64_t end, F inverse) {
  for (int64_t c = begin; c < end; c += kLanes) store_bytes(job.data + c, quantized(mul(scaled(job, c), inverse)));
}

NPU_INLINE F scale_of(F largest) { return finish(mul(largest, splat_bits(kOneOver127))); }
NPU_INLINE F inverse_of(F largest) { return mul(splat(127.0f), recip(largest)); }

NPU_INLINE void quantize_row(const QuantizeJob& job) {
  const int64_t cols = job.num_blocks * job.depth;
  const F largest = splat_bits(static_cast<uint32_t>(max_magnitude(job, 0, cols)));
  const uint32_t scale = static_cast<uint32_t>(bits(scale_of(largest))[0]);
  for (int64_t k = 0; k < job.num_blocks; ++k) job.scales[k] = scale;
  quantize_range(job, 0, cols, inverse_of(largest));
}

// As many blocks at a time as there are lanes: their reciprocals are one vector.
NPU_INLINE void quantize_blocks(const QuantizeJob& job, int64_t first, int64_t count) {
  uint32_t largest[kLanes] = {};
  for (int64_t k = 0; k < count; ++k) {
    const int64_t begin = (first + k) * job.depth;
    largest[k] = static_cast<uint32_t>(max_magnitude(job, begin, begin + job.depth));
  }
  uint32_t inverses[kLanes];
  store(inverses, inverse_of(load(largest)));
  store(job.scales + first, scale_of(load(largest)), count);
  for (int64_t k = 0; k < count; ++k) {
    const int64_t begin = (first + k) * job.depth;
    quantize_range(job, begin, begin + job.depth, splat_bits(inverses[k]));
  }
}

void quantize(const QuantizeJob& job) {
  if (job.whole_row) return quantize_row(job);
  for (int64_t k = 0; k < job.num_blocks; k += kLanes) {
    quantize_blocks(job, k, job.num_blocks - k < kLanes ? job.num_blocks - k : kLanes);
  }
}

}  // namespace
}  // namespace npu
