// QACT and QST.
#include <algorithm>
#include <cstring>

#include "fault.h"
#include "machine.h"

namespace npu {
namespace {

// Elements from which a second thread is worth its start.
constexpr int64_t kParallelElements = 16384;
constexpr int64_t kChunkElements = 4096;
constexpr uint64_t kCacheLine = 64;

}  // namespace

void Machine::qact(const Instruction& in) {
  const uint32_t source = address(in.ra, in.word[1]);
  const uint32_t rows = in.word[2] & 0xff;
  const uint32_t first_block = in.word[2] >> 8 & 0xff;
  const uint32_t num_blocks = high16(in.word[2]);
  const uint64_t stride = in.word[3];
  const bool duplicate = in.flags & kQactDup;
  const uint64_t cols = uint64_t{num_blocks} * config_.depth;
  if (rows == 0 || num_blocks == 0) fault("QACT of %u rows and %u blocks", rows, num_blocks);
  if (rows > config_.act_rows) fault("QACT of %u rows, but ACT RAM has %u", rows, config_.act_rows);
  if (duplicate && 2 * rows > config_.mcols) fault("QACT DUP of %u rows, but MCOLS is %u", rows, config_.mcols);
  if (first_block + num_blocks > config_.act_blocks) {
    fault("QACT of blocks %u to %u, but an ACT row has %u", first_block, first_block + num_blocks - 1,
          config_.act_blocks);
  }
  check_tmem(source, (rows - 1) * stride + cols, "QACT source");
  if (in.flags & kQactColumnScale) check_tmem(in.word[4], cols, "QACT column factors");
  if (in.flags & kQactRowScale) check_tmem(in.word[5], rows, "QACT row factors");

  QuantizeJob job{};
  job.src = tmem() + source;
  job.column_scale = in.flags & kQactColumnScale ? tmem() + in.word[4] : nullptr;
  job.row_scale = in.flags & kQactRowScale ? tmem() + in.word[5] : nullptr;
  job.data = act_row(0) + uint64_t{first_block} * config_.depth;
  job.scales = act_scales_row(0) + first_block;
  job.num_rows = rows;
  job.num_blocks = num_blocks;
  job.depth = config_.depth;
  job.src_stride = static_cast<int64_t>(stride);
  job.data_stride = static_cast<int64_t>(act_stride_);
  job.scales_stride = config_.act_blocks;
  job.whole_row = in.flags & kQactRow;
  quantize(job);
  for (uint32_t r = 0; duplicate && r < rows; ++r) {
    std::memcpy(job.data + (r + rows) * act_stride_, job.data + r * act_stride_, cols);
    std::memcpy(job.scales + uint64_t{r + rows} * config_.act_blocks, job.scales + uint64_t{r} * config_.act_blocks,
                size_t{num_blocks} * 4);
  }
}

// On all threads if there is enough to do.
void Machine::quantize(const QuantizeJob& job) {
  const int64_t num_elements = job.num_rows * job.num_blocks * job.depth;
  if (num_elements < kParallelElements || pool_.num_threads() == 1) return kernels_->quantize(job);
  const int64_t chunks = std::min(job.num_rows, num_elements / kChunkElements);
  pool_.run(static_cast<int>(chunks), [&](int chunk, int) {
    const int64_t first = chunk * job.num_rows / chunks;
    QuantizeJob part = job;
    part.num_rows = (chunk + 1) * job.num_rows / chunks - first;
    part.src += first * job.src_stride;
    if (part.row_scale) part.row_scale += first;
    part.data += first * job.data_stride;
    part.scales += first * job.scales_stride;
    kernels_->quantize(part);
  });
}

void Machine::qst(const Instruction& in) {
  const uint32_t source = address(in.ra, in.word[1]);
  const uint32_t target = address(in.rb, in.word[2]);
  const uint32_t scale_target = address(in.rc, in.word[3]);
  const uint32_t rows = low16(in.word[4]);
  const uint32_t num_blocks = high16(in.word[4]);
  const uint64_t stride = in.word[5];
  const uint64_t row_stride = in.word[6];
  const uint64_t element_stride = in.word[7];
  const bool whole_row = in.flags & kQstRow;
  if (rows == 0 || num_blocks == 0) fault("QST of %u rows and %u blocks", rows, num_blocks);
  if ((in.flags & kQstHalf) && !whole_row) fault("QST HALF without ROW");
  const uint64_t cols = uint64_t{num_blocks} * config_.depth;
  const uint64_t written = in.flags & kQstHalf ? cols / 2 : cols;
  const uint64_t scales_per_row = whole_row ? 1 : num_blocks;
  const uint64_t data_end = target + (rows - 1) * row_stride + (written - 1) * element_stride + 1;
  const uint64_t scale_end = scale_target + rows * scales_per_row * 4;
  check_tmem(source, (rows - 1) * stride + cols, "QST source");
  dram_.check(target, data_end - target, "QST data");
  dram_.check_words(scale_target, rows * scales_per_row, "QST scales");
  if (target < scale_end && scale_target < data_end) {
    for (uint64_t r = 0; r < rows; ++r) {
      for (uint64_t c = 0; c < written; ++c) {
        const uint64_t byte = target + r * row_stride + c * element_stride;
        if (byte >= scale_target && byte < scale_end) {
          fault("QST data byte %llu lies in the scales", static_cast<unsigned long long>(byte));
        }
      }
    }
  }

  dram_.tick();
  const ElementGrid grid{target, rows, written, row_stride, element_stride};
  Lines* const lookups = fetch_later_store(grid);
  quantized_.resize(rows * cols);
  quantized_scales_.resize(size_t{rows} * num_blocks);
  QuantizeJob job{};
  job.src = tmem() + source;
  job.data = quantized_.data();
  job.scales = quantized_scales_.data();
  job.num_rows = rows;
  job.num_blocks = num_blocks;
  job.depth = config_.depth;
  job.src_stride = static_cast<int64_t>(stride);
  job.data_stride = static_cast<int64_t>(cols);
  job.scales_stride = num_blocks;
  job.whole_row = whole_row;
  quantize(job);
  store_elements(grid, cols, lookups);
  for (uint64_t r = 0; r < rows; ++r) {
    std::memcpy(dram_.data() + scale_target + r * scales_per_row * 4, &quantized_scales_[r * num_blocks],
                scales_per_row * 4);
  }
  wrote({scale_target, 0, 1, scale_end - scale_target}, lookups);
}

Lines* Machine::fetch_later_store(const ElementGrid& grid) {
  if (program_->stored.full()) return nullptr;
  Stored& stored = program_->stored.next();
  stored = {grid, {}};
  if (const Stored* later = program_->stored.later()) {
    prefetch_elements(later->grid);
    later->lookups.fetch();
  }
  return &stored.lookups;
}

// A column of V^T has each byte in a line of its own, and none of them is in a cache.
void Machine::prefetch_elements(const ElementGrid& grid) const {
  constexpr uint64_t kMaxLines = 512;
  if (grid.rows > kMaxLines || grid.cols > kMaxLines) return;
  const uint8_t* begin = dram_.data() + grid.begin;
  if (grid.element_stride >= kCacheLine) {
    for (uint64_t c = 0; c < grid.cols; ++c) __builtin_prefetch(begin + c * grid.element_stride, 1);
  } else {
    for (uint64_t r = 0; r < grid.rows; ++r) __builtin_prefetch(begin + r * grid.row_stride, 1);
  }
}

void Machine::store_elements(const ElementGrid& grid, uint64_t source_stride, Lines* lookups) {
  const int8_t* source = quantized_.data();
  const auto element = [&](uint64_t r, uint64_t c) -> uint8_t& {
    return dram_.data()[grid.begin + r * grid.row_stride + c * grid.element_stride];
  };
  if (grid.element_stride == 1) {
    for (uint64_t r = 0; r < grid.rows; ++r) std::memcpy(&element(r, 0), source + r * source_stride, grid.cols);
    wrote({grid.begin, grid.row_stride, grid.rows, grid.cols}, lookups);
  } else if (grid.row_stride == 1 && grid.element_stride >= grid.rows) {
    // Rows side by side as columns: written along the columns, which are contiguous and do not overlap.
    for (uint64_t c = 0; c < grid.cols; ++c) {
      for (uint64_t r = 0; r < grid.rows; ++r) element(r, c) = static_cast<uint8_t>(source[r * source_stride + c]);
    }
    wrote({grid.begin, grid.element_stride, grid.cols, grid.rows}, lookups);
  } else {
    for (uint64_t r = 0; r < grid.rows; ++r) {
      for (uint64_t c = 0; c < grid.cols; ++c) element(r, c) = static_cast<uint8_t>(source[r * source_stride + c]);
      wrote({grid.begin + r * grid.row_stride, grid.element_stride, grid.cols, 1});
    }
  }
}

}  // namespace npu
