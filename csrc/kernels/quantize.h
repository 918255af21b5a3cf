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

NPU_INLINE I max_magnitude(const QuantizeJob& job, int64_t begin, int64_t end) {
  I largest{};
  for (int64_t c = begin; c < end; c += kLanes) largest = max(largest, bits(flush(scaled(job, c))) & kMagnitude);
  return largest;
}

NPU_INLINE int32_t horizontal_max(I x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_epi32((__m512i)x);
#else
  int32_t result = x[0];
  for (int i = 1; i < kLanes; ++i) result = x[i] > result ? x[i] : result;
  return result;
#endif
}

NPU_INLINE void quantize_range(const QuantizeJob& job, int64_t begin, int64_t end, F inverse) {
  const F magic = splat(12582912.0f);
  for (int64_t c = begin; c < end; c += kLanes) {
    const F y = mul(scaled(job, c), inverse);
    // Clamping before rounding is the same as after it, the limits being integers; a NaN becomes 0.
    const F low = select(less(y, splat(-127.0f)), splat(-127.0f), y);
    const F clamped = select(less(splat(127.0f), low), splat(127.0f), low);
    const F number = select(is_nan(clamped), F{}, clamped);
    store_bytes(job.data + c, bits(number + magic) - bits(magic));
  }
}

NPU_INLINE uint32_t quantize_group(const QuantizeJob& job, int64_t begin, int64_t end) {
  const int32_t amax = horizontal_max(max_magnitude(job, begin, end));
  const F largest = splat_bits(static_cast<uint32_t>(amax));
  const F scale = finish(mul(largest, splat_bits(kOneOver127)));
  quantize_range(job, begin, end, mul(splat(127.0f), recip(largest)));
  return static_cast<uint32_t>(bits(scale)[0]);
}

void quantize(const QuantizeJob& job) {
  if (job.whole_row) {
    const uint32_t scale = quantize_group(job, 0, job.num_blocks * job.depth);
    for (int64_t k = 0; k < job.num_blocks; ++k) job.scales[k] = scale;
    return;
  }
  for (int64_t k = 0; k < job.num_blocks; ++k) {
    job.scales[k] = quantize_group(job, k * job.depth, (k + 1) * job.depth);
  }
}

}  // namespace
}  // namespace npu
