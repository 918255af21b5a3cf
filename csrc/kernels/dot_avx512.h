// Integer dot products and packing with AVX-512 VNNI.
#pragma once

#include "mm.h"

namespace npu {
namespace {

struct VnniDot {
  static constexpr int kGroups = 2;
  static constexpr int kMaxRows = 8;

  template <int ROWS, int GROUPS>
  static NPU_INLINE void run(I (&dot)[ROWS][GROUPS][1], const uint8_t* weights, int64_t group_bytes, const int8_t* act,
                             int64_t act_stride, int64_t columns) {
    __m512i sum[ROWS][GROUPS];
    for (int j = 0; j < ROWS; ++j) {
      for (int g = 0; g < GROUPS; ++g) sum[j][g] = (__m512i)dot[j][g][0];
    }
    for (int64_t c = 0; c < columns; c += 16) {
#pragma GCC unroll 4
      for (int64_t q = c; q < c + 16; q += 4) {
        __m512i w[GROUPS];
        for (int g = 0; g < GROUPS; ++g) w[g] = _mm512_loadu_si512(weights + g * group_bytes + q * kGroup);
        for (int j = 0; j < ROWS; ++j) {
          int32_t quad;
          std::memcpy(&quad, act + j * act_stride + q, sizeof quad);
          const __m512i a = _mm512_set1_epi32(quad);
          for (int g = 0; g < GROUPS; ++g) sum[j][g] = _mm512_dpbusd_epi32(sum[j][g], w[g], a);
        }
      }
    }
    for (int j = 0; j < ROWS; ++j) {
      for (int g = 0; g < GROUPS; ++g) dot[j][g][0] = (I)sum[j][g];
    }
  }
};

NPU_INLINE void transpose(__m512i (&x)[16]) {
  __m512i t[16];
  for (int i = 0; i < 16; i += 2) {
    t[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    t[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(t[i], t[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(t[i], t[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(t[i + 1], t[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(t[i + 1], t[i + 3]);
  }
  // x[4r + q] now holds, in 128-bit lane l, column 4l + q of rows 4r .. 4r + 3.
  for (int q = 0; q < 4; ++q) {
    const __m512i a = _mm512_shuffle_i32x4(x[q], x[4 + q], 0x88);
    const __m512i b = _mm512_shuffle_i32x4(x[8 + q], x[12 + q], 0x88);
    const __m512i c = _mm512_shuffle_i32x4(x[q], x[4 + q], 0xdd);
    const __m512i d = _mm512_shuffle_i32x4(x[8 + q], x[12 + q], 0xdd);
    t[q] = _mm512_shuffle_i32x4(a, b, 0x88);
    t[4 + q] = _mm512_shuffle_i32x4(c, d, 0x88);
    t[8 + q] = _mm512_shuffle_i32x4(a, b, 0xdd);
    t[12 + q] = _mm512_shuffle_i32x4(c, d, 0xdd);
  }
  for (int i = 0; i < 16; ++i) x[i] = t[i];
}

void pack(const PackJob& job) {
  const PackLayout& layout = job.layout;
  const __m512i offset = _mm512_set1_epi8(-128);
  for (int64_t k = 0; k < layout.num_blocks; ++k) {
    const int64_t columns = k + 1 == layout.num_blocks ? layout.last_columns : layout.depth;
    uint8_t* block = job.packed + k * layout.block_bytes();
    for (int64_t n = 0; n < kGroup; ++n) {
      uint32_t scale = 0x3f800000;
      if (n < job.num_rows && job.scales) std::memcpy(&scale, job.scales + n * job.scale_stride + k * 4, sizeof scale);
      std::memcpy(block + n * 4, &scale, sizeof scale);
    }
    for (int64_t c = 0; c < columns; c += 64) {
      const int64_t num_quads = columns - c < 64 ? (columns - c) / 4 : 16;
      __m512i x[16];
      for (int n = 0; n < kGroup; ++n) {
        const int8_t* row = job.weights + n * job.weight_stride + k * layout.depth + c;
        const __mmask16 mask = n < job.num_rows ? first(num_quads) : 0;
        x[n] = _mm512_xor_si512(_mm512_maskz_loadu_epi32(mask, row), offset);
      }
      transpose(x);
      uint8_t* out = block + kScaleBytes + c * kGroup;
      for (int64_t q = 0; q < num_quads; ++q) _mm512_storeu_si512(out + q * 64, x[q]);
    }
  }
}

}  // namespace
}  // namespace npu
