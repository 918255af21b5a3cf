// The interface between the machine and the arithmetic kernels, of which there is one set for each vector ISA.
//
// Plain C structures only: the sets are compiled with different -m flags, and nothing inline may be shared with
// code that runs before the CPU has been asked what it can do. All pointers have been checked by the caller.
#pragma once

#include <cstdint>

namespace npu {

// One VOP, or a part of its rows and columns; strides in words. A splat B is read at b[r*brs] only.
struct VopJob {
  uint32_t* dst;
  const uint32_t* a;
  const uint32_t* b;
  int64_t rows, cols, drs, ars, brs;
  int32_t argmax_base;
};

// dst[r][c] = dst[r][c] * decay[c * decay_step] + b[r*brs] * column[c]
struct OuterJob {
  uint32_t* dst;
  const uint32_t* b;
  const uint32_t* column;
  const uint32_t* decay;
  int64_t rows, cols, drs, brs, decay_step;
};

// Rows of num_blocks * depth words to int8; strides in elements. column_scale and row_scale may be null.
struct QuantizeJob {
  const uint32_t* src;
  const uint32_t* column_scale;
  const uint32_t* row_scale;
  int8_t* data;
  uint32_t* scales;  // one per row and block; with whole_row the same in each block
  int64_t num_rows, num_blocks, depth, src_stride, data_stride, scales_stride;
  bool whole_row;
};

constexpr int kGroup = 32;  // output rows that are interleaved
constexpr int kScaleBytes = kGroup * 4;

// Packed weights of a group, for each block: 32 fp32 scales, then for each 4 columns 32 dwords, one per output row,
// of bytes w + 128. The last block is cut after `last_columns`; what is cut off is zero in every row.
struct PackLayout {
  int64_t num_blocks, depth, last_columns;
  int64_t block_bytes() const { return kScaleBytes + depth * kGroup; }
  int64_t group_bytes() const { return (num_blocks - 1) * block_bytes() + kScaleBytes + last_columns * kGroup; }
};

struct PackJob {
  const int8_t* weights;  // first row of the group
  const uint8_t* scales;  // its first scale word; null: 1.0
  int64_t weight_stride, scale_stride, num_rows;  // rows from num_rows on are packed as zero
  PackLayout layout;
  uint8_t* packed;
};

struct MmJob {
  const uint8_t* packed;  // num_groups consecutive groups
  int64_t num_groups, num_outputs;
  PackLayout layout;
  const int8_t* act;
  const uint32_t* act_scales;
  const int32_t* bias;  // [rows][num_blocks]: what the 128 added to each weight adds to the dot product, negated
  int64_t act_stride, act_scales_stride, rows;
  uint32_t* out;
  int64_t out_stride;
  const uint32_t* alpha;  // [rows] or null
  bool accumulate;
};

using VopKernel = void (*)(const VopJob&);

struct Kernels {
  const char* name;
  bool denormals_are_zero;  // the floating-point mode to call them in, see float_mode.h
  // Indexed by function and by whether B is one word per row; null where a function is not a plain VOP.
  VopKernel vop[21][2];
  void (*outer)(const OuterJob&);
  void (*quantize)(const QuantizeJob&);
  void (*pack)(const PackJob&);
  // Columns, rounded up to the packing's step, after which the last block of every row is zero.
  int64_t (*last_columns)(const int8_t* last_block, int64_t stride, int64_t num_rows, int64_t depth);
  void (*bias)(const int8_t* act, int64_t act_stride, int64_t rows, const PackLayout& layout, int32_t* bias);
  void (*mm)(const MmJob&);
};

extern const Kernels kGenericKernels;
#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kAvx512Kernels;
#endif

// The sets that this CPU runs, best first; at most kMaxKernelSets. Returns how many.
constexpr int kMaxKernelSets = 3;
int usable_kernels(const Kernels* (&sets)[kMaxKernelSets]);

}  // namespace npu
