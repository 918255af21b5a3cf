// MM's shape: tiles of ROWS activation rows by GROUPS * 16 output rows over packed weights.
//
// A kernel set brings a Dot with the integer part; scaling and the sum order of isum_4 are written here once.
#pragma once

#include "lanes.h"

namespace npu {
namespace {

constexpr int kVectors = kGroup / kLanes;  // per group

NPU_INLINE F scale_vector(const uint8_t* block, int v) {
  return load(reinterpret_cast<const uint32_t*>(block) + v * kLanes);
}

template <int ROWS, int GROUPS>
struct Tile {
  F part[4][ROWS][GROUPS][kVectors];

  NPU_INLINE void add_block(const MmJob& job, const I (&dot)[ROWS][GROUPS][kVectors], const uint8_t* block,
                            int64_t row, int64_t k) {
    const int64_t group_bytes = job.layout.group_bytes();
    for (int j = 0; j < ROWS; ++j) {
      const F act_scale = operand(splat_bits(job.act_scales[(row + j) * job.act_scales_stride + k]));
      for (int g = 0; g < GROUPS; ++g) {
        for (int v = 0; v < kVectors; ++v) {
          const F ws = operand(scale_vector(block + g * group_bytes, v));
          const F term = mul(mul(to_float(dot[j][g][v]), ws), act_scale);
          F& sum = part[k & 3][j][g][v];
          sum = add(k < 4 ? F{} : sum, term);
        }
      }
    }
  }

  // (p0 + p2) + (p1 + p3). A partial that got no term is +0, and adding it changes nothing: the others began as
  // +0 + term, which is never -0.
  NPU_INLINE F folded(int j, int g, int v, int64_t num_blocks) const {
    const F even = num_blocks > 2 ? add(part[0][j][g][v], part[2][j][g][v]) : part[0][j][g][v];
    if (num_blocks == 1) return even;
    return add(even, num_blocks > 3 ? add(part[1][j][g][v], part[3][j][g][v]) : part[1][j][g][v]);
  }

  NPU_INLINE void write(const MmJob& job, int64_t row, int64_t first_output) const {
    for (int j = 0; j < ROWS; ++j) {
      uint32_t* out = job.out + (row + j) * job.out_stride + first_output;
      const F alpha = job.alpha ? operand(splat_bits(job.alpha[row + j])) : F{};
      for (int g = 0; g < GROUPS; ++g) {
        for (int v = 0; v < kVectors; ++v) {
          const int64_t offset = g * kGroup + v * kLanes;
          const int64_t n = job.num_outputs - first_output - offset;
          if (n <= 0) break;
          F y = folded(j, g, v, job.layout.num_blocks);
          if (job.accumulate) {
            F old = operand(n >= kLanes ? load(out + offset) : load(out + offset, n));
            if (job.alpha) old = mul(old, alpha);
            y = add(old, y);
          }
          y = finish(y);
          if (n >= kLanes) {
            store(out + offset, y);
          } else {
            store(out + offset, y, n);
            break;
          }
        }
      }
    }
  }
};

template <class Dot, int ROWS, int GROUPS>
void mm_tile(const MmJob& job, const uint8_t* packed, int64_t row, int64_t first_output) {
  Tile<ROWS, GROUPS> tile;
  const int64_t num_blocks = job.layout.num_blocks;
  for (int64_t k = 0; k < num_blocks; ++k) {
    const int64_t columns = k + 1 == num_blocks ? job.layout.last_columns : job.layout.depth;
    const uint8_t* block = packed + k * job.layout.block_bytes();
    const int8_t* act = job.act + row * job.act_stride + k * job.layout.depth;
    I dot[ROWS][GROUPS][kVectors];
    for (int j = 0; j < ROWS; ++j) {
      const I bias = splat(job.bias[(row + j) * num_blocks + k]);
      for (int g = 0; g < GROUPS; ++g) {
        for (int v = 0; v < kVectors; ++v) dot[j][g][v] = bias;
      }
    }
    Dot::template run<ROWS, GROUPS>(dot, block + kScaleBytes, job.layout.group_bytes(), act, job.act_stride, columns);
    tile.add_block(job, dot, block, row, k);
  }
  tile.write(job, row, first_output);
}

using TileKernel = void (*)(const MmJob&, const uint8_t*, int64_t, int64_t);

// The tile kernels of 1 to MAX_ROWS rows.
template <class Dot, int GROUPS, int MAX_ROWS>
struct TileTable {
  TileKernel kernel[MAX_ROWS + 1] = {};
  template <int ROWS = 1>
  constexpr void fill() {
    kernel[ROWS] = mm_tile<Dot, ROWS, GROUPS>;
    if constexpr (ROWS < MAX_ROWS) fill<ROWS + 1>();
  }
  constexpr TileTable() { fill(); }
};

template <class Dot, int GROUPS, int MAX_ROWS>
void mm_groups(const MmJob& job, int64_t first_group, int64_t end_group) {
  static constexpr TileTable<Dot, GROUPS, MAX_ROWS> table{};
  for (int64_t g = first_group; g < end_group; g += GROUPS) {
    const uint8_t* packed = job.packed + g * job.layout.group_bytes();
    // Equal tiles: 9 rows as 5 + 4, not as 8 + 1.
    const int64_t num_tiles = (job.rows + MAX_ROWS - 1) / MAX_ROWS;
    for (int64_t t = 0, row = 0; t < num_tiles; ++t) {
      const int64_t rows = (job.rows - row + num_tiles - t - 1) / (num_tiles - t);
      table.kernel[rows](job, packed, row, g * kGroup);
      row += rows;
    }
  }
}

template <class Dot>
void mm(const MmJob& job) {
  constexpr int kStep = Dot::kGroups;
  const int64_t whole = job.num_groups - job.num_groups % kStep;
  mm_groups<Dot, kStep, Dot::kMaxRows>(job, 0, whole);
  if constexpr (kStep > 1) mm_groups<Dot, 1, Dot::kMaxRows>(job, whole, job.num_groups);
}

}  // namespace
}  // namespace npu
