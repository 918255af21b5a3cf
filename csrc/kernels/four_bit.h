// MM with 4-bit weights: codes become bytes in registers, and every part of a block has a scale of its own.
//
// A kernel set's Dot brings Weights, weights() and accumulate(): the sum of four products of unsigned bytes with
// int8 activations. Codes are biased to be unsigned; MmJob::bias takes that back.
#pragma once

#include "mm.h"

namespace npu {
namespace {

constexpr int32_t kInt4Offset = 8;
constexpr int32_t kE2m1Offset = 12;
constexpr int64_t kCodeStep = 8;  // columns whose codes are in one dword
constexpr int64_t kFourBitPrefetchBytes = 4096;

// Codes, one in the low half of each byte, to integer + offset.
template <int FORMAT>
NPU_INLINE I expand(I codes) {
  if constexpr (FORMAT == kInt4) return codes ^ 0x08080808;
#if defined(__AVX512F__)
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  return (I)_mm512_shuffle_epi8(_mm512_broadcast_i32x4(table), (__m512i)codes);
#elif defined(__AVX2__)
  const __m128i table = _mm_setr_epi8(12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0);
  return (I)_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(table), (__m256i)codes);
#else
  // Magnitudes 0..7 become 0 1 2 3 4 6 8 12: what exceeds the code is 1 for bits 2 and 0, 2 for 2 and 1, 5 for all.
  const I bit0 = codes & 0x01010101, bit1 = codes >> 1 & 0x01010101, bit2 = codes >> 2 & 0x01010101;
  const I low = bit2 & bit0, high = bit2 & bit1;
  const I magnitude = (codes & 0x07070707) + low + 2 * high + 2 * (low & high);
  const I negative = (codes >> 3 & 0x01010101) * 255;
  return ((0x0c0c0c0c + magnitude) & ~negative) | ((0x0c0c0c0c - magnitude) & negative);
#endif
}

template <class Dot, int ROWS>
using FourBitSums = I[ROWS][Dot::kFourBitVectors];

template <class Dot, int ROWS>
NPU_INLINE void add_quad(FourBitSums<Dot, ROWS>& sum, const typename Dot::Weights (&weights)[Dot::kFourBitVectors],
                         const int8_t* act, int64_t act_stride) {
  for (int j = 0; j < ROWS; ++j) {
    int32_t quad;
    std::memcpy(&quad, act + j * act_stride, sizeof quad);
    for (int v = 0; v < Dot::kFourBitVectors; ++v) Dot::accumulate(sum[j][v], weights[v], quad);
  }
}

// Adds the products of `columns` columns; `codes` are those of the first.
template <class Dot, int FORMAT, int ROWS>
NPU_INLINE void add_columns(FourBitSums<Dot, ROWS>& sum, const uint8_t* codes, const int8_t* act, int64_t act_stride,
                            int64_t columns) {
  for (int64_t c = 0; c < columns; c += kCodeStep) {
    const uint8_t* step = codes + c / kCodeStep * kScaleBytes;
    typename Dot::Weights low[Dot::kFourBitVectors], high[Dot::kFourBitVectors];
    for (int v = 0; v < Dot::kFourBitVectors; ++v) {
      const I both = bits(load(reinterpret_cast<const uint32_t*>(step) + v * kLanes));
#if defined(__x86_64__)
      _mm_prefetch(reinterpret_cast<const char*>(step + v * kLanes * 4 + kFourBitPrefetchBytes), _MM_HINT_T0);
#endif
      low[v] = Dot::weights(expand<FORMAT>(both & 0x0f0f0f0f));
      high[v] = Dot::weights(expand<FORMAT>(both >> 4 & 0x0f0f0f0f));
    }
    add_quad<Dot, ROWS>(sum, low, act + c, act_stride);
    add_quad<Dot, ROWS>(sum, high, act + c + 4, act_stride);
  }
}

// Adds the products of four columns, the first or the last of a step.
template <class Dot, int FORMAT, int ROWS>
NPU_INLINE void add_half_step(FourBitSums<Dot, ROWS>& sum, const uint8_t* step, const int8_t* act, int64_t act_stride,
                              bool last) {
  typename Dot::Weights weights[Dot::kFourBitVectors];
  for (int v = 0; v < Dot::kFourBitVectors; ++v) {
    const I both = bits(load(reinterpret_cast<const uint32_t*>(step) + v * kLanes));
    weights[v] = Dot::weights(expand<FORMAT>((last ? both >> 4 : both) & 0x0f0f0f0f));
  }
  add_quad<Dot, ROWS>(sum, weights, act, act_stride);
}

// One block against ROWS activation rows.
struct FourBitBlock {
  const uint8_t* packed;
  const int8_t* act;
  const uint32_t* act_scales;  // of the first row
  const int32_t* bias;         // of the first row
  int64_t act_stride, act_scales_stride, bias_stride, columns, scale_bytes;
};

// term[j][first + v]: the block's products, scaled.
template <class Dot, int FORMAT, int ROWS>
NPU_INLINE void block_terms(F (&term)[ROWS][kVectors], const FourBitBlock& block, int first) {
  constexpr int kSteps = Dot::kFourBitVectors;
  constexpr int kParts = FORMAT == kNvfp4 ? 8 : 4;
  const uint32_t* scales = reinterpret_cast<const uint32_t*>(block.packed) + first * kLanes;
  const uint8_t* codes = block.packed + block.scale_bytes + first * kLanes * 4;
  const int64_t part = block.columns / kParts;
  // nvfp4 sums floats: the first is itself when added to -0.
  I total[ROWS][kSteps];
  for (int j = 0; j < ROWS; ++j) {
    for (int v = 0; v < kSteps; ++v) total[j][v] = splat(FORMAT == kNvfp4 ? kSign : 0);
  }
  for (int p = 0; p < kParts; ++p) {
    I sum[ROWS][kSteps];
    for (int j = 0; j < ROWS; ++j) {
      for (int v = 0; v < kSteps; ++v) sum[j][v] = splat(block.bias[j * block.bias_stride + p]);
    }
    const uint8_t* step = codes + p * part / kCodeStep * kScaleBytes;
    if (FORMAT == kNvfp4 && part < kCodeStep) {  // blocks of 32
      add_half_step<Dot, FORMAT, ROWS>(sum, step, block.act + p * part, block.act_stride, p % 2 == 1);
    } else {
      add_columns<Dot, FORMAT, ROWS>(sum, step, block.act + p * part, block.act_stride, part);
    }
    for (int v = 0; v < kSteps; ++v) {
      if constexpr (FORMAT == kNvfp4) {
        const I both = bits(load(scales + p / 2 * kGroup + v * kLanes));
        const F scale = value(p % 2 == 0 ? both << 16 : both & static_cast<int32_t>(0xffff0000));
        for (int j = 0; j < ROWS; ++j) {
          total[j][v] = bits(add(value(total[j][v]), mul(to_float(sum[j][v]), scale)));
        }
      } else {
        const I multiplier = (I)((U)bits(load(scales + v * kLanes)) >> (16 + 4 * p)) & 15;
        for (int j = 0; j < ROWS; ++j) total[j][v] += sum[j][v] * multiplier;
      }
    }
  }
  for (int v = 0; v < kSteps; ++v) {
    F scale{};
    if constexpr (FORMAT != kNvfp4) scale = operand(value(bits(load(scales + v * kLanes)) << 16));
    for (int j = 0; j < ROWS; ++j) {
      const F act_scale = operand(splat_bits(block.act_scales[j * block.act_scales_stride]));
      const F dot = FORMAT == kNvfp4 ? value(total[j][v]) : mul(to_float(total[j][v]), scale);
      term[j][first + v] = mul(dot, act_scale);
    }
  }
}

// The scaled products of block k with the ACT rows from `row` on.
template <class Dot, int FORMAT, int ROWS>
NPU_INLINE void four_bit_terms(F (&term)[ROWS][kVectors], const MmJob& job, const uint8_t* packed, int64_t row, int64_t k) {
  const PackLayout& layout = job.layout;
  const int64_t parts = layout.sub_blocks();
  const FourBitBlock block{packed + k * layout.block_bytes(),
                           job.act + row * job.act_stride + k * layout.depth,
                           job.act_scales + row * job.act_scales_stride + k,
                           job.bias + (row * layout.num_blocks + k) * parts,
                           job.act_stride,
                           job.act_scales_stride,
                           layout.num_blocks * parts,
                           layout.depth,
                           layout.scale_bytes()};
  for (int first = 0; first < kVectors; first += Dot::kFourBitVectors) {
    block_terms<Dot, FORMAT, ROWS>(term, block, first);
  }
}

template <class Dot, int FORMAT, bool PAIR, int ROWS>
void four_bit_tile(const MmJob& job, const uint8_t* packed, int64_t row, int64_t first_output) {
  constexpr int64_t kBlocks = PAIR ? 2 : 1;
  const int64_t num_blocks = job.layout.num_blocks;
  const int64_t num_terms = (num_blocks + kBlocks - 1) / kBlocks;
  Tile<ROWS> tile;
  for (int64_t t = 0; t < num_terms; ++t) {
    F term[ROWS][kVectors];
    four_bit_terms<Dot, FORMAT, ROWS>(term, job, packed, row, t * kBlocks);
    if constexpr (PAIR) {
      F odd[ROWS][kVectors] = {};
      if (2 * t + 1 < num_blocks) four_bit_terms<Dot, FORMAT, ROWS>(odd, job, packed, row + job.rows, 2 * t + 1);
      for (int j = 0; j < ROWS; ++j) {
        for (int v = 0; v < kVectors; ++v) term[j][v] = add(term[j][v], odd[j][v]);
      }
    }
    for (int j = 0; j < ROWS; ++j) {
      for (int v = 0; v < kVectors; ++v) tile.add_term(term[j][v], j, v, t);
    }
  }
  const uint8_t* row_scales = packed + num_blocks * job.layout.block_bytes();
  tile.write(job, row, first_output, num_terms,
             FORMAT == kNvfp4 ? reinterpret_cast<const uint32_t*>(row_scales) : nullptr);
}

// The tile kernels of 1 to Dot::kFourBitRows rows.
template <class Dot, int FORMAT, bool PAIR>
struct FourBitTiles {
  TileKernel kernel[Dot::kFourBitRows + 1] = {};
  template <int ROWS = 1>
  constexpr void fill() {
    kernel[ROWS] = four_bit_tile<Dot, FORMAT, PAIR, ROWS>;
    if constexpr (ROWS < Dot::kFourBitRows) fill<ROWS + 1>();
  }
  constexpr FourBitTiles() { fill(); }
};

template <class Dot, int FORMAT>
const TileKernel* four_bit_tiles(bool pair) {
  static constexpr FourBitTiles<Dot, FORMAT, false> plain{};
  static constexpr FourBitTiles<Dot, FORMAT, true> paired{};
  return pair ? paired.kernel : plain.kernel;
}

template <class Dot>
void mm_four_bit(const MmJob& job) {
  const int format = job.layout.format;
  const TileKernel* const kernel = format == kInt4  ? four_bit_tiles<Dot, kInt4>(job.pair)
                                   : format == kFp4 ? four_bit_tiles<Dot, kFp4>(job.pair)
                                                    : four_bit_tiles<Dot, kNvfp4>(job.pair);
  run_tiles(job, kernel, Dot::kFourBitRows);
}

// Eight codes as in DRAM, even columns in the low halves, to columns 0..3 in the low and 4..7 in the high halves.
NPU_INLINE uint32_t interleave_codes(uint32_t codes) {
  const auto spread = [](uint32_t two_bytes) { return (two_bytes | two_bytes << 8) & 0x00ff00ff; };
  const uint32_t even = codes & 0x0f0f0f0f, odd = codes >> 4 & 0x0f0f0f0f;
  const uint32_t low = spread(even & 0xffff) | spread(odd & 0xffff) << 8;
  const uint32_t high = spread(even >> 16) | spread(odd >> 16) << 8;
  return low | high << 4;
}

// E4M3 as bf16, which holds all of it; NaN stays NaN.
NPU_INLINE uint32_t e4m3_to_bf16(uint8_t code) {
  const uint32_t sign = (code & 0x80u) << 8, exponent = code >> 3 & 15, fraction = code & 7;
  if ((code & 0x7f) == 0x7f) return sign | 0x7fc0;
  if (exponent != 0) return sign | (exponent + 120) << 7 | fraction << 4;
  if (fraction == 0) return sign;
  const uint32_t shift = fraction >= 4 ? 1 : fraction >= 2 ? 2 : 3;
  return sign | (121 - shift) << 7 | (fraction << shift & 7) << 4;
}

void pack_block_scales(const PackJob& job, int64_t n, int64_t k, uint8_t* block) {
  const bool scaled = n < job.num_rows && job.scales;
  if (job.layout.format != kNvfp4) {
    uint32_t word = 0x11113f80;
    if (scaled) std::memcpy(&word, job.scales + n * job.scale_stride + k * 4, sizeof word);
    std::memcpy(block + n * 4, &word, sizeof word);
    return;
  }
  for (int64_t pair = 0; pair < 4; ++pair) {
    uint32_t word = 0x3f803f80;
    if (scaled) {
      const uint8_t* codes = job.scales + n * job.scale_stride + k * 8 + pair * 2;
      word = e4m3_to_bf16(codes[0]) | e4m3_to_bf16(codes[1]) << 16;
    }
    std::memcpy(block + pair * kScaleBytes + n * 4, &word, sizeof word);
  }
}

void pack_four_bit(const PackJob& job) {
  const PackLayout& layout = job.layout;
  for (int64_t k = 0; k < layout.num_blocks; ++k) {
    uint8_t* block = job.packed + k * layout.block_bytes();
    for (int64_t n = 0; n < kGroup; ++n) {
      pack_block_scales(job, n, k, block);
      const uint8_t* row = job.weights + n * job.weight_stride + k * layout.depth / 2;
      for (int64_t i = 0; i < layout.depth / kCodeStep; ++i) {
        uint32_t codes = 0;
        if (n < job.num_rows) std::memcpy(&codes, row + i * 4, sizeof codes);
        codes = interleave_codes(codes);
        std::memcpy(block + layout.scale_bytes() + i * kScaleBytes + n * 4, &codes, sizeof codes);
      }
    }
  }
  if (layout.format != kNvfp4) return;
  uint8_t* row_scales = job.packed + layout.num_blocks * layout.block_bytes();
  for (int64_t n = 0; n < kGroup; ++n) {
    uint32_t scale = 0x3f800000;
    if (n < job.num_rows && job.scales) {
      std::memcpy(&scale, job.scales + n * job.scale_stride + layout.num_blocks * 8, sizeof scale);
    }
    std::memcpy(row_scales + n * 4, &scale, sizeof scale);
  }
}

}  // namespace
}  // namespace npu
