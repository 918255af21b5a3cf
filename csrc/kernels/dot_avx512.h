// Integer dot products and packing with AVX-512 VNNI.
#pragma once

#include "mm.h"

namespace npu {
namespace {

// Written as assembly because GCC 12 surrounds the intrinsic with copies of the accumulators.
NPU_INLINE void add_products(__m512i& sum, __m512i weights, __m512i act) {
  asm("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(weights), "v"(act));
}

struct VnniDot {
  using Weights = I;
  static constexpr int kFourBitRows = 6;
  static constexpr int kFourBitVectors = 2;

  static NPU_INLINE Weights weights(I bytes) { return bytes; }
  static NPU_INLINE void accumulate(I& sum, Weights weights, int32_t quad) {
    __m512i s = (__m512i)sum;
    add_products(s, (__m512i)weights, _mm512_set1_epi32(quad));
    sum = (I)s;
  }

  static constexpr int kMaxRows = 8;
  // The hardware prefetcher loses the stream while a tile computes. As far ahead as was fastest on Zen 5.
  template <int ROWS>
  static constexpr int64_t kPrefetchBytes = ROWS < 6 ? 4096 : 8192;

  // Four columns of every row against four of every output.
  template <int ROWS>
  static NPU_INLINE void step(__m512i (&sum)[ROWS][2], const uint8_t* weights, const int8_t* act, int64_t act_stride,
                              int64_t bytes_ahead) {
    const __m512i w[2] = {_mm512_loadu_si512(weights), _mm512_loadu_si512(weights + 64)};
    const char* const ahead = reinterpret_cast<const char*>(weights + bytes_ahead);
    _mm_prefetch(ahead, _MM_HINT_T0);
    _mm_prefetch(ahead + 64, _MM_HINT_T0);
    for (int j = 0; j < ROWS; ++j) {
      int32_t quad;
      std::memcpy(&quad, act + j * act_stride, sizeof quad);
      const __m512i a = _mm512_set1_epi32(quad);
      add_products(sum[j][0], w[0], a);
      add_products(sum[j][1], w[1], a);
    }
  }

  template <int ROWS>
  static NPU_INLINE void run(Sums<ROWS>& dot, const uint8_t* weights, const int8_t* act, int64_t act_stride,
                             int64_t columns, int64_t ahead) {
    const int64_t bytes_ahead = ahead ? ahead : kPrefetchBytes<ROWS>;
    __m512i sum[ROWS][2];
    for (int j = 0; j < ROWS; ++j) {
      for (int v = 0; v < 2; ++v) sum[j][v] = (__m512i)dot[j][v];
    }
    // Columns come in sixteens. One exit from the loop keeps the accumulators where they are.
    const int8_t* const end = act + columns;
    do {
      for (int i = 0; i < 4; ++i) step<ROWS>(sum, weights + i * 4 * kGroup, act + i * 4, act_stride, bytes_ahead);
      weights += 16 * kGroup;
      act += 16;
    } while (act != end);
    for (int j = 0; j < ROWS; ++j) {
      for (int v = 0; v < 2; ++v) dot[j][v] = (I)sum[j][v];
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
      for (int half = 0; half < 2; ++half) {
        __m512i x[16];
        for (int i = 0; i < 16; ++i) {
          const int n = half * 16 + i;
          const uint8_t* row = job.weights + n * job.weight_stride + k * layout.depth + c;
          const __mmask16 mask = n < job.num_rows ? first(num_quads) : 0;
          x[i] = _mm512_xor_si512(_mm512_maskz_loadu_epi32(mask, row), offset);
        }
        transpose(x);
        uint8_t* out = block + kScaleBytes + c * kGroup + half * 64;
        for (int64_t q = 0; q < num_quads; ++q) _mm512_storeu_si512(out + q * 128, x[q]);
      }
    }
  }
}

}  // namespace
}  // namespace npu
