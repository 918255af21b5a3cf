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

// One head's step of the gated delta rule on some rows of its state [rows][cols], in place; a row depends on nothing
// but its own v: d = (v[r] - (state[r] . k) decay) beta, state[r] = state[r] decay + d k, out[r] = state[r] . q.
struct DeltaJob {
  uint32_t* state;
  const uint32_t* qk;  // q[cols], k[cols]
  const uint32_t* v;
  uint32_t decay, beta;
  uint32_t* out;
  int64_t rows, cols;  // cols a multiple of 64 up to 256
  bool zero;           // the state is taken as +0, not read
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

enum WeightFormat : uint8_t { kInt8 = 0, kInt4 = 1, kFp4 = 2, kNvfp4 = 3 };

constexpr int kGroup = 32;  // output rows that are interleaved
constexpr int kScaleBytes = kGroup * 4;
constexpr int64_t kColumnStep = 16;  // columns of int8 that are multiplied at a time
constexpr int kMaxSubBlocks = 8;  // parts of a block with scales or multipliers of their own

// Packed weights of a group, for each block: scales, then the weights of 32 output rows, dword by dword side by side.
//
//   int8        32 fp32 scales; for each 4 columns 32 dwords of bytes w + 128. The last block has room for
//               `stored_columns`, of which those from `last_columns` on are zero in every row and not multiplied.
//   int4, fp4   32 scale words; for each 8 columns 32 dwords, columns 0..3 in the low halves of the bytes and 4..7 in
//               the high halves. Codes as in DRAM.
//   nvfp4       4 times 32 dwords, each the bf16 of two sub-blocks' scales; codes as above; behind the last block 32
//               fp32 scales of the rows.
struct PackLayout {
  int64_t num_blocks, depth, last_columns;
  int format;  // WeightFormat
  int64_t stored_columns = last_columns;
  int64_t sub_blocks() const { return format == kInt8 ? 1 : format == kNvfp4 ? 8 : 4; }
  int64_t scale_bytes() const { return format == kNvfp4 ? 4 * kScaleBytes : kScaleBytes; }
  int64_t code_bytes(int64_t columns) const { return format == kInt8 ? columns * kGroup : columns * kGroup / 2; }
  int64_t block_bytes() const { return scale_bytes() + code_bytes(depth); }
  int64_t group_bytes() const {
    const int64_t row_scales = format == kNvfp4 ? kScaleBytes : 0;
    return (num_blocks - 1) * block_bytes() + scale_bytes() + code_bytes(stored_columns) + row_scales;
  }
};

struct PackJob {
  const uint8_t* weights;  // first row of the group
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
  // [rows][num_blocks][sub_blocks]: what the number added to each weight adds to the dot product, negated.
  const int32_t* bias;
  int64_t act_stride, act_scales_stride, rows;
  bool pair;  // odd blocks meet the activations `rows` further down
  uint32_t* out;
  int64_t out_stride;
  const uint32_t* alpha;  // [rows] or null
  bool accumulate;
  int64_t ahead;  // from the weights in use to those to be fetched, in bytes; 0: as the kernel thinks best
};

using VopKernel = void (*)(const VopJob&);

struct Kernels {
  const char* name;
  bool denormals_are_zero;  // the floating-point mode to call them in, see float_mode.h
  // Indexed by function and by whether B is one word per row; null where a function is not a plain VOP.
  VopKernel vop[21][2];
  void (*outer)(const OuterJob&);
  void (*delta)(const DeltaJob&);
  void (*quantize)(const QuantizeJob&);
  void (*pack)(const PackJob&);
  // int8: columns, rounded up to the packing's step, after which the last block of every row is zero.
  int64_t (*last_columns)(const uint8_t* last_block, int64_t stride, int64_t num_rows, int64_t depth);
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
