// VOP: elementwise functions, reductions, OUTER and ARGMAX over rows of TMEM.
//
// Elements are read and written in row-major order, a vector at a time and its reads first. The caller has
// excluded programs whose result would depend on the difference.
#pragma once

#include "functions.h"

namespace npu {
namespace {

struct Add { static NPU_INLINE F apply(F a, F b) { return finish(add(operand(a), operand(b))); } };
struct Sub { static NPU_INLINE F apply(F a, F b) { return finish(sub(operand(a), operand(b))); } };
struct Rsub { static NPU_INLINE F apply(F a, F b) { return finish(sub(operand(b), operand(a))); } };
struct Mul { static NPU_INLINE F apply(F a, F b) { return finish(mul(operand(a), operand(b))); } };
struct Max {
  static NPU_INLINE F apply(F a, F b) {
    return value(order_key(max(order_key(bits(flush(a))), order_key(bits(flush(b))))));
  }
};
struct Min {
  static NPU_INLINE F apply(F a, F b) {
    return value(order_key(min(order_key(bits(flush(a))), order_key(bits(flush(b))))));
  }
};
struct Copy { static NPU_INLINE F apply(F a, F) { return flush(a); } };
struct Fill { static NPU_INLINE F apply(F, F b) { return flush(b); } };
struct Abs { static NPU_INLINE F apply(F a, F) { return value(bits(flush(a)) & kMagnitude); } };
struct Exp2 { static NPU_INLINE F apply(F a, F) { return exp2(a); } };
struct Exp2Sub { static NPU_INLINE F apply(F a, F b) { return exp2(sub(operand(a), operand(b))); } };
struct Recip { static NPU_INLINE F apply(F a, F) { return recip(a); } };
struct Rsqrt { static NPU_INLINE F apply(F a, F) { return rsqrt(a); } };
struct Log2 { static NPU_INLINE F apply(F a, F) { return log2(a); } };

enum Operands { kOnlyA, kOnlyB, kBoth };

template <class Op, Operands operands, bool splat_b>
void elementwise(const VopJob& job) {
  const uint32_t* a_row = job.a;
  const uint32_t* b_row = job.b;
  uint32_t* dst_row = job.dst;
  for (int64_t r = 0; r < job.rows; ++r) {
    F b{};
    if (splat_b && operands != kOnlyA) b = splat_bits(*b_row);
    int64_t c = 0;
    for (; c + kLanes <= job.cols; c += kLanes) {
      const F a = operands == kOnlyB ? F{} : load(a_row + c);
      if (!splat_b && operands != kOnlyA) b = load(b_row + c);
      store(dst_row + c, Op::apply(a, b));
    }
    const int64_t rest = job.cols - c;
    if (rest > 0) {
      const F a = operands == kOnlyB ? F{} : load(a_row + c, rest);
      if (!splat_b && operands != kOnlyA) b = load(b_row + c, rest);
      store(dst_row + c, Op::apply(a, b), rest);
    }
    a_row += job.ars;
    b_row += job.brs;
    dst_row += job.drs;
  }
}

// isum_64: 64 partials in kPartials vectors.
constexpr int kPartials = 64 / kLanes;

struct SumOfA { static NPU_INLINE F term(F a, F) { return operand(a); } };
struct SumOfSquares { static NPU_INLINE F term(F a, F) { return mul(operand(a), operand(a)); } };
struct SumOfProducts { static NPU_INLINE F term(F a, F b) { return mul(operand(a), operand(b)); } };

// The sum of `count` vectors, in every lane.
NPU_INLINE F fold(F* p, int count = kPartials) {
  for (int n = count / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) p[i] = add(p[i], p[i + n]);
  }
#if defined(__AVX512F__)
  F x = p[0];
  x = x + (F)_mm512_shuffle_f32x4((__m512)x, (__m512)x, 0x4e);
  x = x + (F)_mm512_shuffle_f32x4((__m512)x, (__m512)x, 0xb1);
  x = x + (F)_mm512_permute_ps((__m512)x, 0x4e);
  return x + (F)_mm512_permute_ps((__m512)x, 0xb1);
#else
  F x = p[0];
  for (int n = kLanes / 2; n > 0; n /= 2) {
    F other{};
    for (int i = 0; i < kLanes; ++i) other[i] = x[i ^ n];
    x = add(x, other);
  }
  return x;
#endif
}

template <class Term, bool has_b, bool splat_b>
void sum_rows(const VopJob& job) {
  for (int64_t r = 0; r < job.rows; ++r) {
    const uint32_t* a = job.a + r * job.ars;
    const uint32_t* b_row = job.b + r * job.brs;
    F b{};
    if (has_b && splat_b) b = splat_bits(*b_row);
    F p[kPartials] = {};
    int64_t c = 0;
    for (; c + 64 <= job.cols; c += 64) {
      for (int i = 0; i < kPartials; ++i) {
        if (has_b && !splat_b) b = load(b_row + c + i * kLanes);
        p[i] = add(p[i], Term::term(load(a + c + i * kLanes), b));
      }
    }
    if (c < job.cols) {
      // Padding terms are +0 whatever B holds.
      for (int i = 0; i < kPartials; ++i) {
        int64_t n = job.cols - c - i * kLanes;
        n = n < 0 ? 0 : n > kLanes ? kLanes : n;
        if (has_b && !splat_b) b = load(b_row + c + i * kLanes, n);
        p[i] = add(p[i], keep_first(Term::term(load(a + c + i * kLanes, n), b), n));
      }
    }
    const F sum = finish(fold(p));
    job.dst[r * job.drs] = static_cast<uint32_t>(bits(sum)[0]);
  }
}

NPU_INLINE int32_t row_max_key(const uint32_t* a, int64_t cols) {
  I best = splat(INT32_MIN);
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) best = max(best, order_key(bits(flush(load(a + c)))));
  if (c < cols) {
    const F x = load(a + c, cols - c);
    // Lanes past the end repeat the first element.
    const F end = splat_bits(a[c]);
    I lane{};
    for (int i = 0; i < kLanes; ++i) lane[i] = i;
    best = max(best, order_key(bits(flush(select(less(lane, splat(static_cast<int32_t>(cols - c))), x, end)))));
  }
  return max_lane(best);
}

NPU_INLINE uint32_t key_bits(int32_t key) { return static_cast<uint32_t>(key ^ ((key >> 31) & kMagnitude)); }

void row_max(const VopJob& job) {
  for (int64_t r = 0; r < job.rows; ++r) {
    job.dst[r * job.drs] = key_bits(row_max_key(job.a + r * job.ars, job.cols));
  }
}

NPU_INLINE int64_t first_equal(const uint32_t* a, int64_t cols, uint32_t wanted) {
  const I target = splat(static_cast<int32_t>(wanted));
  int64_t c = 0;
  for (; c + kLanes <= cols; c += kLanes) {
    const unsigned hits = mask_bits(equal(bits(flush(load(a + c))), target));
    if (hits != 0) return c + __builtin_ctz(hits);
  }
  // The maximum is in the row, so what is left holds it, before any lane past the end.
  return c + __builtin_ctz(mask_bits(equal(bits(flush(load(a + c, cols - c))), target)));
}

void argmax(const VopJob& job) {
  for (int64_t r = 0; r < job.rows; ++r) {
    const uint32_t* a = job.a + r * job.ars;
    const uint32_t best = key_bits(row_max_key(a, job.cols));
    const uint32_t column = static_cast<uint32_t>(first_equal(a, job.cols, best));
    const uint32_t index = column + static_cast<uint32_t>(job.argmax_base);
    job.dst[r * job.drs] = best;
    job.dst[r * job.drs + 1] = static_cast<uint32_t>(bits(to_float(splat(static_cast<int32_t>(index))))[0]);
  }
}

void outer(const OuterJob& job) {
  for (int64_t r = 0; r < job.rows; ++r) {
    uint32_t* dst = job.dst + r * job.drs;
    const F b = operand(splat_bits(job.b[r * job.brs]));
    for (int64_t c = 0; c < job.cols; c += kLanes) {
      const int64_t n = job.cols - c < kLanes ? job.cols - c : kLanes;
      const F decay = job.decay_step ? load(job.decay + c, n) : splat_bits(*job.decay);
      const F kept = mul(operand(load(dst + c, n)), operand(decay));
      store(dst + c, finish(add(kept, mul(b, operand(load(job.column + c, n))))), n);
    }
  }
}

}  // namespace
}  // namespace npu
