// VOP: checks, the hazard rule and the distribution over threads.
#include <algorithm>
#include <cstring>

#include "fault.h"
#include "machine.h"

namespace npu {
namespace {

constexpr double kParallelNs = 4000;
constexpr double kChunkNs = 1500;

struct FunctionTraits {
  bool exists, reads_a, reads_b, reduction;
  double ns_per_element;  // about, on one core; decides over threads
};

constexpr FunctionTraits kTraits[kNumFunctions] = {
    {true, true, true, false, 0.06},     // ADD
    {true, true, true, false, 0.06},     // SUB
    {true, true, true, false, 0.06},     // RSUB
    {true, true, true, false, 0.06},     // MUL
    {true, true, true, false, 0.08},     // MAX
    {true, true, true, false, 0.08},     // MIN
    {true, false, true, false, 0.08},    // OUTER
    {false, false, false, false, 0.0},   //
    {true, true, false, false, 0.06},    // COPY
    {true, true, false, false, 0.3},     // EXP2
    {true, true, false, false, 0.3},     // RECIP
    {true, true, false, false, 0.4},     // RSQRT
    {true, true, false, false, 0.06},    // ABS
    {true, false, true, false, 0.04},    // FILL
    {true, true, true, false, 0.3},      // EXP2SUB
    {true, true, false, false, 0.4},     // LOG2
    {true, true, false, true, 0.06},     // RSUM
    {true, true, false, true, 0.06},     // RMAX
    {true, true, false, true, 0.06},     // RSSQ
    {true, true, true, true, 0.06},      // RDOT
    {true, true, false, true, 0.1},      // ARGMAX
};

}  // namespace

void Machine::vop(Instruction& in) {
  const uint32_t function = in.word[6] >> 16 & 0xff;
  if (function >= kNumFunctions || !kTraits[function].exists) fault("VOP function %u does not exist", function);
  const uint32_t rows = low16(in.word[4]);
  const uint32_t cols = high16(in.word[4]);
  if (rows == 0 || cols == 0) fault("VOP of %u rows and %u columns", rows, cols);
  if (function == kOuter) return outer(in);

  const FunctionTraits& traits = kTraits[function];
  const uint32_t bmode = in.word[6] >> 24 & 3;
  const uint32_t immediate = address(in.rd, in.word[7]);
  const bool reads_b = traits.reads_b && bmode != kImmediate;
  const Operand a{address(in.rb, in.word[2]), high16(in.word[5]), true};
  const Operand b{address(in.rc, in.word[3]), bmode == kPerColumn ? 0 : low16(in.word[6]), bmode != kPerRow};
  const uint64_t width = !traits.reduction ? cols : function == kArgmax ? 2 : 1;
  const uint64_t dst = address(in.ra, in.word[1]);
  Footprint footprint{rows, cols, dst, low16(in.word[5]), width, traits.reduction, nullptr, nullptr};
  if (traits.reads_a) footprint.a = &a;
  if (reads_b) footprint.b = &b;
  if (function == kArgmax && rows > 1 && footprint.dst_stride < 2) {
    fault("ARGMAX of %u rows with dst stride %llu, less than 2", rows,
          static_cast<unsigned long long>(footprint.dst_stride));
  }
  check_tmem(footprint.dst, (rows - 1) * footprint.dst_stride + width, "VOP dst");
  if (traits.reads_a) check_tmem(a.base, (rows - 1) * a.row_stride + cols, "VOP a");
  if (reads_b) check_tmem(b.base, (rows - 1) * b.row_stride + (b.per_column ? cols : 1), "VOP b");
  const Order order = element_order(in, footprint);

  VopJob job{};
  job.dst = tmem() + footprint.dst;
  job.a = traits.reads_a ? tmem() + a.base : job.dst;
  job.b = reads_b ? tmem() + b.base : &immediate;
  job.rows = rows;
  job.cols = cols;
  job.drs = static_cast<int64_t>(footprint.dst_stride);
  job.ars = traits.reads_a ? static_cast<int64_t>(a.row_stride) : 0;
  job.brs = reads_b ? static_cast<int64_t>(b.row_stride) : 0;
  job.argmax_base = static_cast<int32_t>(immediate);
  const bool splat_b = !reads_b || bmode == kPerRow;
  const VopKernel kernel = kernels_->vop[function][splat_b];
  const double ns = static_cast<double>(job.rows * job.cols) * traits.ns_per_element;
  if (ns < kParallelNs || order != kIndependent || pool_.num_threads() == 1) return kernel(job);
  run_vop(job, kernel, traits.reduction, splat_b, ns);
}

void Machine::run_vop(const VopJob& job, VopKernel kernel, bool whole_rows, bool splat_b, double ns) {
  const int64_t wanted = std::min(static_cast<int64_t>(ns / kChunkNs), int64_t{8} * pool_.num_threads());
  if (job.rows >= wanted || whole_rows) {
    const int64_t chunks = std::min(job.rows, wanted);
    pool_.run(static_cast<int>(chunks), [&](int chunk, int) {
      const int64_t first = job.rows * chunk / chunks;
      VopJob part = job;
      part.rows = job.rows * (chunk + 1) / chunks - first;
      part.dst += first * job.drs;
      part.a += first * job.ars;
      part.b += first * job.brs;
      kernel(part);
    });
    return;
  }
  const int64_t step = (job.cols / wanted + 63) / 64 * 64;
  pool_.run(static_cast<int>((job.cols + step - 1) / step), [&](int chunk, int) {
    const int64_t first = step * chunk;
    VopJob part = job;
    part.cols = std::min(step, job.cols - first);
    part.dst += first;
    part.a += first;
    if (!splat_b) part.b += first;
    kernel(part);
  });
}

void Machine::outer(Instruction& in) {
  const uint32_t bmode = in.word[6] >> 24 & 3;
  if (bmode != kPerRow) fault("OUTER needs bmode 1, not %u", bmode);
  const uint32_t rows = low16(in.word[4]);
  const uint32_t cols = high16(in.word[4]);
  if (cols > kOuterMaxColumns) fault("OUTER of %u columns, more than %u", cols, kOuterMaxColumns);
  const Operand state{address(in.ra, in.word[1]), low16(in.word[5]), true};
  const Operand b{address(in.rc, in.word[3]), low16(in.word[6]), false};
  const uint32_t decay = address(in.rb, in.word[2]);
  const uint32_t column = address(in.rd, in.word[7]);
  const bool no_decay = in.flags & kOuterNoDecay;
  const bool scalar_decay = in.flags & kOuterScalarDecay;
  check_tmem(state.base, (rows - 1) * state.row_stride + cols, "OUTER dst");
  check_tmem(b.base, (rows - 1) * b.row_stride + 1, "OUTER b");
  check_tmem(column, cols, "OUTER column vector");
  if (!no_decay) check_tmem(decay, scalar_decay ? 1 : cols, "OUTER decay");
  element_order(in, {rows, cols, state.base, state.row_stride, cols, false, &state, &b});

  // Both vectors count as read before any write, so they may lie in dst.
  uint32_t columns[kOuterMaxColumns];
  uint32_t decays[kOuterMaxColumns] = {0x3f800000};
  std::copy_n(tmem() + column, cols, columns);
  if (!no_decay) std::copy_n(tmem() + decay, scalar_decay ? 1 : cols, decays);
  OuterJob job{};
  job.dst = tmem() + state.base;
  job.b = tmem() + b.base;
  job.column = columns;
  job.decay = decays;
  job.rows = rows;
  job.cols = cols;
  job.drs = static_cast<int64_t>(state.row_stride);
  job.brs = static_cast<int64_t>(b.row_stride);
  job.decay_step = no_decay || scalar_decay ? 0 : 1;
  kernels_->outer(job);
}

}  // namespace npu
