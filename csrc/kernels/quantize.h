// Quantization of TMEM rows to int8 blocks: the arithmetic of QACT and QST.
#pragma once

#include "functions.h"

namespace npu {
namespace {

constexpr uint32_t kOneOver127 = 0x3c010204;

// Elements that share a scale.
struct Span {
  const uint32_t* src;
  const uint32_t* column_scale;
  const uint32_t* row_scale;
  int8_t* data;
  int64_t length;
};

// Span number i: a block, or with whole_row a row.
NPU_INLINE Span span(const QuantizeJob& job, int64_t i) {
  const int64_t row = job.whole_row ? i : i / job.num_blocks;
  const int64_t column = job.whole_row ? 0 : i % job.num_blocks * job.depth;
  return {job.src + row * job.src_stride + column, job.column_scale ? job.column_scale + column : nullptr,
          job.row_scale ? job.row_scale + row : nullptr, job.data + row * job.data_stride + column,
          job.whole_row ? job.num_blocks * job.depth : job.depth};
}

// Elements c and after, with their factors: (x * row) * column, each product rounded.
NPU_INLINE F scaled(const Span& span, int64_t c, F row_scale) {
  F x = operand(load(span.src + c));
  if (span.row_scale) x = mul(x, row_scale);
  if (span.column_scale) x = mul(x, operand(load(span.column_scale + c)));
  return x;
}

NPU_INLINE F row_factor(const Span& span) { return span.row_scale ? operand(splat_bits(*span.row_scale)) : F{}; }

// Largest magnitude as an integer, flushed: a denormal is only the largest where all are zero or denormal.
NPU_INLINE int32_t max_magnitude(const Span& span) {
  const F factor = row_factor(span);
  I largest{};
  for (int64_t c = 0; c < span.length; c += kLanes) largest = max(largest, bits(scaled(span, c, factor)) & kMagnitude);
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

NPU_INLINE void quantize_span(const Span& span, F inverse) {
  const F factor = row_factor(span);
  for (int64_t c = 0; c < span.length; c += kLanes) {
    store_bytes(span.data + c, quantized(mul(scaled(span, c, factor), inverse)));
  }
}

// As many spans at a time as there are lanes: their reciprocals are one vector.
NPU_INLINE void quantize_spans(const QuantizeJob& job, int64_t first, int64_t count) {
  uint32_t largest[kLanes] = {};
  for (int64_t i = 0; i < count; ++i) largest[i] = static_cast<uint32_t>(max_magnitude(span(job, first + i)));
  const F magnitude = load(largest);
  uint32_t inverses[kLanes], scales[kLanes];
  store(inverses, mul(splat(127.0f), recip(magnitude)));
  store(scales, finish(mul(magnitude, splat_bits(kOneOver127))));
  for (int64_t i = 0; i < count; ++i) {
    quantize_span(span(job, first + i), splat_bits(inverses[i]));
    if (job.whole_row) {
      for (int64_t k = 0; k < job.num_blocks; ++k) job.scales[(first + i) * job.scales_stride + k] = scales[i];
    } else {
      job.scales[(first + i) / job.num_blocks * job.scales_stride + (first + i) % job.num_blocks] = scales[i];
    }
  }
}

void quantize(const QuantizeJob& job) {
  const int64_t num_spans = job.whole_row ? job.num_rows : job.num_rows * job.num_blocks;
  for (int64_t i = 0; i < num_spans; i += kLanes) {
    quantize_spans(job, i, num_spans - i < kLanes ? num_spans - i : kLanes);
  }
}

}  // namespace
}  // namespace npu
