// DSTEP: rows of a state, each read and written once.
//
// Every operation rounds as in the sequence RDOT, MUL, SUB, MUL, OUTER, RDOT; the partials of a row's two sums stay in
// registers.
#pragma once

#include "vop.h"

namespace npu {
namespace {

// isum_64 of a row's products up to one vector of partials.
template <int kVectors>
NPU_INLINE F partial_sums(const F* products) {
  F p[kPartials];
  // The sum begins with +0, which makes one of a first -0.
  for (int i = 0; i < kPartials; ++i) p[i] = add(F{}, products[i]);
  for (int i = kPartials; i < kVectors; ++i) p[i % kPartials] = add(p[i % kPartials], products[i]);
  for (int n = kPartials / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) p[i] = add(p[i], p[i + n]);
  }
  return p[0];
}

template <bool kZero>
NPU_INLINE F state_vector(const uint32_t* row, int i) {
  return kZero ? F{} : operand(load(row + i * kLanes));
}

// Rows from `first` on, one by one. kSpans times 64 columns.
template <int kSpans, bool kZero>
void delta_rows(const DeltaJob& job, int64_t first) {
  constexpr int kVectors = kSpans * kPartials;
  const uint32_t* q = job.qk;
  const uint32_t* k = job.qk + kSpans * 64;
  const F decay = operand(splat_bits(job.decay));
  const F beta = operand(splat_bits(job.beta));
  for (int64_t r = first; r < job.rows; ++r) {
    uint32_t* row = job.state + r * kSpans * 64;
    F s[kVectors], products[kVectors];
    for (int i = 0; i < kVectors; ++i) {
      s[i] = state_vector<kZero>(row, i);
      products[i] = mul(s[i], operand(load(k + i * kLanes)));
    }
    F sum = partial_sums<kVectors>(products);
    const F d = mul(sub(operand(splat_bits(job.v[r])), mul(fold(&sum, 1), decay)), beta);
    for (int i = 0; i < kVectors; ++i) {
      const F next = finish(add(mul(s[i], decay), mul(d, operand(load(k + i * kLanes)))));
      store(row + i * kLanes, next);
      products[i] = mul(next, operand(load(q + i * kLanes)));
    }
    sum = partial_sums<kVectors>(products);
    job.out[r] = static_cast<uint32_t>(bits(finish(fold(&sum, 1)))[0]);
  }
}

#if defined(__AVX512F__)

// The last four steps of the sums of 16 rows together: four of fold_four make one of fold_sixteen, whose lane 4 i + j
// is the sum of argument i of the j-th.
NPU_INLINE F fold_four(F a, F b, F c, F d) {
  const __m512 ab = _mm512_add_ps(_mm512_shuffle_f32x4((__m512)a, (__m512)b, 0x44),
                                  _mm512_shuffle_f32x4((__m512)a, (__m512)b, 0xee));
  const __m512 cd = _mm512_add_ps(_mm512_shuffle_f32x4((__m512)c, (__m512)d, 0x44),
                                  _mm512_shuffle_f32x4((__m512)c, (__m512)d, 0xee));
  return (F)_mm512_add_ps(_mm512_shuffle_f32x4(ab, cd, 0x88), _mm512_shuffle_f32x4(ab, cd, 0xdd));
}

NPU_INLINE F fold_sixteen(const F* fours) {
  const auto halves = [](F x, F y) {
    return _mm512_add_ps(_mm512_shuffle_ps((__m512)x, (__m512)y, 0x44), _mm512_shuffle_ps((__m512)x, (__m512)y, 0xee));
  };
  const __m512 x = halves(fours[0], fours[1]);
  const __m512 y = halves(fours[2], fours[3]);
  return (F)_mm512_add_ps(_mm512_shuffle_ps(x, y, 0x88), _mm512_shuffle_ps(x, y, 0xdd));
}

constexpr int64_t kBlockRows = 16;

// Sixteen rows. Each is read twice, the second time from the nearest cache, and their sums are folded together.
template <int kSpans, bool kZero>
void delta_block(const DeltaJob& job, int64_t first) {
  constexpr int kVectors = kSpans * kPartials;
  constexpr int64_t kColumns = kSpans * 64;
  const uint32_t* q = job.qk;
  const uint32_t* k = job.qk + kColumns;
  const F decay = splat_bits(job.decay);
  uint32_t* const state = job.state + first * kColumns;
  F fours[4], sums[4];
  for (int j = 0; j < 4; ++j) {
    for (int n = 0; n < 4; ++n) {
      const uint32_t* row = state + (4 * n + j) * kColumns;
      F products[kVectors];
      for (int i = 0; i < kVectors; ++i) products[i] = mul(state_vector<kZero>(row, i), load(k + i * kLanes));
      sums[n] = partial_sums<kVectors>(products);
    }
    fours[j] = fold_four(sums[0], sums[1], sums[2], sums[3]);
  }
  const F read = fold_sixteen(fours);
  uint32_t errors[kBlockRows];
  store(errors, mul(sub(load(job.v + first), mul(read, decay)), splat_bits(job.beta)));
  __m512 minus_zero = _mm512_set1_ps(-0.0f);
  asm("" : "+v"(minus_zero));  // a sum with it is the flush, see finish
  for (int j = 0; j < 4; ++j) {
    for (int n = 0; n < 4; ++n) {
      uint32_t* row = state + (4 * n + j) * kColumns;
      const F d = splat_bits(errors[4 * n + j]);
      F products[kVectors];
      for (int i = 0; i < kVectors; ++i) {
        const F kept = mul(state_vector<kZero>(row, i), decay);
        const F next = add(kept, mul(d, load(k + i * kLanes))) + (F)minus_zero;
        store(row + i * kLanes, next);
        products[i] = mul(next, load(q + i * kLanes));
      }
      sums[n] = partial_sums<kVectors>(products);
    }
    fours[j] = fold_four(sums[0], sums[1], sums[2], sums[3]);
  }
  const F out = fold_sixteen(fours);
  store(job.out + first, finish(out));
  // Where there is no NaN in a row's result, there is none in the row, whose NaNs have to be the canonical one.
  for (unsigned rows = mask_bits(is_nan(out)); rows != 0; rows &= rows - 1) {
    uint32_t* row = state + __builtin_ctz(rows) * kColumns;
    for (int i = 0; i < kVectors; ++i) store(row + i * kLanes, finish(load(row + i * kLanes)));
  }
}

#endif

template <int kSpans, bool kZero>
void delta_spans(const DeltaJob& job) {
  int64_t first = 0;
#if defined(__AVX512F__)
  for (; first + kBlockRows <= job.rows; first += kBlockRows) delta_block<kSpans, kZero>(job, first);
#endif
  delta_rows<kSpans, kZero>(job, first);
}

template <bool kZero>
void delta_columns(const DeltaJob& job) {
  switch (job.cols / 64) {
    case 1:
      return delta_spans<1, kZero>(job);
    case 2:
      return delta_spans<2, kZero>(job);
    case 3:
      return delta_spans<3, kZero>(job);
    default:
      return delta_spans<4, kZero>(job);
  }
}

void delta(const DeltaJob& job) {
  if (job.zero) return delta_columns<true>(job);
  delta_columns<false>(job);
}

}  // namespace
}  // namespace npu
