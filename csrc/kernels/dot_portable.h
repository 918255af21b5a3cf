// Integer dot products and packing without VNNI: products of 16 bits, exact because |(w + 128) * a| < 2^15.
#pragma once

#include "mm.h"

namespace npu {
namespace {

typedef int16_t H __attribute__((vector_size(kLanes * 4)));

// The even and odd bytes of activation dwords as 16-bit pairs, and sums of products with the weights' bytes.
NPU_INLINE I pair_products(I weights, I act) {
#if defined(__AVX2__)
  return (I)_mm256_madd_epi16((__m256i)weights, (__m256i)act);
#else
  const I product = (I)((H)weights * (H)act);
  return (product << 16 >> 16) + (product >> 16);
#endif
}

struct PortableDot {
  struct Weights {
    I even, odd;
  };
  static constexpr int kFourBitRows = 2;
  static constexpr int kFourBitVectors = 2;

  static NPU_INLINE Weights weights(I bytes) { return {bytes & 0x00ff00ff, (I)((U)bytes >> 8) & 0x00ff00ff}; }
  static NPU_INLINE void accumulate(I& sum, Weights weights, int32_t quad) {
    const H pairs = (H)splat(quad);
    sum += pair_products(weights.even, (I)((H)(pairs << 8) >> 8)) + pair_products(weights.odd, (I)(pairs >> 8));
  }

  static constexpr int kMaxRows = 4;
  static constexpr int kStep = 2;  // vectors of outputs at a time: as many as registers can hold for four rows

  template <int ROWS>
  static NPU_INLINE void run(Sums<ROWS>& dot, const uint8_t* weights, const int8_t* act, int64_t act_stride,
                             int64_t columns, int64_t) {
    for (int first = 0; first < kVectors; first += kStep) {
      I sum[ROWS][kStep];
      for (int j = 0; j < ROWS; ++j) {
        for (int v = 0; v < kStep; ++v) sum[j][v] = dot[j][first + v];
      }
      for (int64_t c = 0; c < columns; c += 4) {
        const uint32_t* w = reinterpret_cast<const uint32_t*>(weights + c * kGroup) + first * kLanes;
        for (int v = 0; v < kStep; ++v) {
          const Weights quads = PortableDot::weights(bits(load(w + v * kLanes)));
          for (int j = 0; j < ROWS; ++j) {
            int32_t quad;
            std::memcpy(&quad, act + j * act_stride + c, sizeof quad);
            accumulate(sum[j][v], quads, quad);
          }
        }
      }
      for (int j = 0; j < ROWS; ++j) {
        for (int v = 0; v < kStep; ++v) dot[j][first + v] = sum[j][v];
      }
    }
  }
};

void pack(const PackJob& job) {
  const PackLayout& layout = job.layout;
  for (int64_t k = 0; k < layout.num_blocks; ++k) {
    const int64_t columns = k + 1 == layout.num_blocks ? layout.last_columns : layout.depth;
    uint8_t* block = job.packed + k * layout.block_bytes();
    for (int64_t n = 0; n < kGroup; ++n) {
      const bool real = n < job.num_rows;
      uint32_t scale = 0x3f800000;
      if (real && job.scales) std::memcpy(&scale, job.scales + n * job.scale_stride + k * 4, sizeof scale);
      std::memcpy(block + n * 4, &scale, sizeof scale);
      const uint8_t* row = job.weights + n * job.weight_stride + k * layout.depth;
      for (int64_t c = 0; c < columns; c += 4) {
        uint32_t quad = 0;
        if (real) std::memcpy(&quad, row + c, sizeof quad);
        quad ^= 0x80808080;
        std::memcpy(block + kScaleBytes + c * kGroup + n * 4, &quad, sizeof quad);
      }
    }
  }
}

}  // namespace
}  // namespace npu
