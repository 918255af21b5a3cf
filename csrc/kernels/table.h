// The table of one kernel set; `Dot` and `pack` come from the set's own header.
#pragma once

#include "delta.h"
#include "four_bit.h"
#include "quantize.h"
#include "vop.h"

namespace npu {
namespace {

int64_t last_columns(const uint8_t* last_block, int64_t stride, int64_t num_rows, int64_t depth) {
  int64_t used = kColumnStep;
  for (int64_t n = 0; n < num_rows && used < depth; ++n) {
    const uint8_t* row = last_block + n * stride;
    for (int64_t c = depth - 4; c >= used; c -= 4) {
      uint32_t quad;
      std::memcpy(&quad, row + c, sizeof quad);
      if (quad == 0) continue;
      used = c / kColumnStep * kColumnStep + kColumnStep;
      break;
    }
  }
  return used;
}

// The parts of 4-bit blocks, each times what is added to its weights.
void sub_block_bias(const int8_t* act, int64_t act_stride, int64_t rows, const PackLayout& layout, int32_t* bias) {
  const int32_t offset = layout.format == kInt4 ? kInt4Offset : kE2m1Offset;
  const int64_t columns = layout.depth / layout.sub_blocks();
  for (int64_t j = 0; j < rows; ++j) {
    const int8_t* part = act + j * act_stride;
    for (int64_t i = 0; i < layout.num_blocks * layout.sub_blocks(); ++i, part += columns) {
      int32_t sum = 0;
      for (int64_t c = 0; c < columns; ++c) sum += part[c];
      *bias++ = -offset * sum;
    }
  }
}

void bias(const int8_t* act, int64_t act_stride, int64_t rows, const PackLayout& layout, int32_t* bias) {
  if (layout.format != kInt8) return sub_block_bias(act, act_stride, rows, layout, bias);
  for (int64_t j = 0; j < rows; ++j) {
    for (int64_t k = 0; k < layout.num_blocks; ++k) {
      const int64_t columns = k + 1 == layout.num_blocks ? layout.last_columns : layout.depth;
      const int8_t* block = act + j * act_stride + k * layout.depth;
      int32_t sum = 0;
#if defined(__AVX512VNNI__)
      __m128i sums{};
      for (int64_t c = 0; c < columns; c += 16) {
        sums = _mm_dpbusd_epi32(sums, _mm_set1_epi8(1), _mm_loadu_si128(reinterpret_cast<const __m128i*>(block + c)));
      }
      sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0x4e));
      sums = _mm_add_epi32(sums, _mm_shuffle_epi32(sums, 0xb1));
      sum = _mm_cvtsi128_si32(sums);
#else
      for (int64_t c = 0; c < columns; ++c) sum += block[c];
#endif
      *bias++ = -128 * sum;
    }
  }
}

void pack_weights(const PackJob& job) {
  if (job.layout.format == kInt8) return pack(job);
  pack_four_bit(job);
}

template <class Dot>
void mm_weights(const MmJob& job) {
  if (job.layout.format == kInt8) return mm<Dot>(job);
  mm_four_bit<Dot>(job);
}

#define NPU_UNARY(OP) {elementwise<OP, kOnlyA, false>, elementwise<OP, kOnlyA, false>}
#define NPU_BINARY(OP) {elementwise<OP, kBoth, false>, elementwise<OP, kBoth, true>}
#define NPU_ROWS(FUNCTION) {FUNCTION, FUNCTION}
#define NPU_KERNEL_TABLE(NAME, DOT)                                                            \
  {                                                                                            \
    NAME, kDenormalsAreZero,                                                                   \
        {                                                                                      \
            NPU_BINARY(Add),                                                                   \
            NPU_BINARY(Sub),                                                                   \
            NPU_BINARY(Rsub),                                                                  \
            NPU_BINARY(Mul),                                                                   \
            NPU_BINARY(Max),                                                                   \
            NPU_BINARY(Min),                                                                   \
            {nullptr, nullptr},                                                                \
            {nullptr, nullptr},                                                                \
            NPU_UNARY(Copy),                                                                   \
            NPU_UNARY(Exp2),                                                                   \
            NPU_UNARY(Recip),                                                                  \
            NPU_UNARY(Rsqrt),                                                                  \
            NPU_UNARY(Abs),                                                                    \
            {elementwise<Fill, kOnlyB, false>, elementwise<Fill, kOnlyB, true>},               \
            NPU_BINARY(Exp2Sub),                                                               \
            NPU_UNARY(Log2),                                                                   \
            NPU_ROWS((sum_rows<SumOfA, false, false>)),                                        \
            NPU_ROWS(row_max),                                                                 \
            NPU_ROWS((sum_rows<SumOfSquares, false, false>)),                                  \
            {sum_rows<SumOfProducts, true, false>, sum_rows<SumOfProducts, true, true>},       \
            NPU_ROWS(argmax),                                                                  \
        },                                                                                     \
        outer, delta, quantize, pack_weights, last_columns, bias, mm_weights<DOT>,                    \
  }

}  // namespace
}  // namespace npu
