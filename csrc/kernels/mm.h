// MM's shape: tiles of ROWS activation rows by one group of 32 output rows over packed weights.
//
// A kernel set brings a Dot with the integer part; scaling and the sum order of isum_4 are written here once.
#pragma once

#include "lanes.h"

namespace npu {
namespace {

constexpr int kVectors = kGroup / kLanes;

template <int ROWS>
using Sums = I[ROWS][kVectors];

template <int ROWS>
struct Tile {
  F part[4][ROWS][kVectors];

  // The term of block (or pair of blocks) k.
  NPU_INLINE void add_term(const F& term, int j, int v, int64_t k) {
    F& sum = part[k & 3][j][v];
    sum = add(k < 4 ? F{} : sum, term);
  }

  NPU_INLINE void add_block(const MmJob& job, const Sums<ROWS>& dot, const uint8_t* block, int64_t row, int64_t k) {
    const uint32_t* weight_scales = reinterpret_cast<const uint32_t*>(block);
    for (int j = 0; j < ROWS; ++j) {
      const F act_scale = operand(splat_bits(job.act_scales[(row + j) * job.act_scales_stride + k]));
      for (int v = 0; v < kVectors; ++v) {
        const F ws = operand(load(weight_scales + v * kLanes));
        add_term(mul(mul(to_float(dot[j][v]), ws), act_scale), j, v, k);
      }
    }
  }

  // (p0 + p2) + (p1 + p3). A partial that got no term is +0, and adding it changes nothing: the others began as
  // +0 + term, which is never -0.
  NPU_INLINE F folded(int j, int v, int64_t num_terms) const {
    const F even = num_terms > 2 ? add(part[0][j][v], part[2][j][v]) : part[0][j][v];
    if (num_terms == 1) return even;
    return add(even, num_terms > 3 ? add(part[1][j][v], part[3][j][v]) : part[1][j][v]);
  }

  // `output_scales` may be null.
  NPU_INLINE void write(const MmJob& job, int64_t row, int64_t first_output, int64_t num_terms,
                        const uint32_t* output_scales) const {
    for (int j = 0; j < ROWS; ++j) {
      uint32_t* out = job.out + (row + j) * job.out_stride + first_output;
      const F alpha = job.alpha ? operand(splat_bits(job.alpha[row + j])) : F{};
      for (int v = 0; v < kVectors; ++v) {
        const int64_t n = job.num_outputs - first_output - v * kLanes;
        if (n <= 0) break;
        F y = folded(j, v, num_terms);
        if (output_scales) y = mul(y, operand(load(output_scales + v * kLanes)));
        if (job.accumulate) {
          F old = operand(n >= kLanes ? load(out + v * kLanes) : load(out + v * kLanes, n));
          if (job.alpha) old = mul(old, alpha);
          y = add(old, y);
        }
        if (n >= kLanes) {
          store(out + v * kLanes, finish(y));
        } else {
          store(out + v * kLanes, finish(y), n);
        }
      }
    }
  }
};

template <class Dot, int ROWS>
void mm_tile(const MmJob& job, const uint8_t* packed, int64_t row, int64_t first_output) {
  Tile<ROWS> tile;
  const int64_t num_blocks = job.layout.num_blocks;
  const int64_t depth = job.layout.depth;
  const uint8_t* block = packed;
  const int8_t* act = job.act + row * job.act_stride;
  for (int64_t k = 0; k < num_blocks; ++k, block += kScaleBytes + depth * kGroup, act += depth) {
    const int64_t columns = k + 1 == num_blocks ? job.layout.last_columns : depth;
    Sums<ROWS> dot;
    for (int j = 0; j < ROWS; ++j) {
      for (int v = 0; v < kVectors; ++v) dot[j][v] = splat(job.bias[(row + j) * num_blocks + k]);
    }
    Dot::template run<ROWS>(dot, block + kScaleBytes, act, job.act_stride, columns, job.ahead);
    tile.add_block(job, dot, block, row, k);
  }
  tile.write(job, row, first_output, num_blocks, nullptr);
}

using TileKernel = void (*)(const MmJob&, const uint8_t*, int64_t, int64_t);

// The tile kernels of 1 to MAX_ROWS rows.
template <class Dot, int MAX_ROWS>
struct TileTable {
  TileKernel kernel[MAX_ROWS + 1] = {};
  template <int ROWS = 1>
  constexpr void fill() {
    kernel[ROWS] = mm_tile<Dot, ROWS>;
    if constexpr (ROWS < MAX_ROWS) fill<ROWS + 1>();
  }
  constexpr TileTable() { fill(); }
};

// `kernel` by number of rows, from 1 to max_rows.
NPU_INLINE void run_tiles(const MmJob& job, const TileKernel* kernel, int64_t max_rows) {
  const int64_t num_tiles = (job.rows + max_rows - 1) / max_rows;
  const int64_t group_bytes = job.layout.group_bytes();
  const uint8_t* packed = job.packed;
  for (int64_t g = 0; g < job.num_groups; ++g, packed += group_bytes) {
    for (int64_t t = 0, row = 0; t < num_tiles; ++t) {
      // Equal tiles: 9 rows as 5 + 4, not as 8 + 1.
      const int64_t rows = (job.rows - row + num_tiles - t - 1) / (num_tiles - t);
      kernel[rows](job, packed, row, g * kGroup);
      row += rows;
    }
  }
}

template <class Dot>
void mm(const MmJob& job) {
  static constexpr TileTable<Dot, Dot::kMaxRows> table{};
  run_tiles(job, table.kernel, Dot::kMaxRows);
}

}  // namespace
}  // namespace npu
