// MM: checks, packed weights and the distribution over threads.
#include <algorithm>
#include <cstring>

#include "fault.h"
#include "machine.h"

namespace npu {
namespace {

// About what a core does in a nanosecond; decides over threads.
constexpr double kPackedBytesPerNs = 32;
constexpr double kMultiplyAddsPerNs = 350;
constexpr double kParallelNs = 4000;
constexpr double kChunkNs = 1500;
// Of larger matrices the processor's own prefetcher has time to see the stream.
constexpr uint64_t kReplayedBytes = 128 << 10;
// Groups that are packed at a time when no packed copy is kept.
constexpr int64_t kScratchGroups = 1;
// Packed by one thread at a time.
constexpr int64_t kPackChunkBytes = 64 << 10;

int64_t num_groups(uint64_t num_rows) { return static_cast<int64_t>((num_rows + kGroup - 1) / kGroup); }

}  // namespace

void Machine::check_matrix(const MatrixKey& key) const {
  const uint64_t row_bytes = key.row_bytes(config_.depth);
  if (key.num_rows == 0 || key.num_blocks == 0) fault("MM of %u rows and %u blocks", key.num_rows, key.num_blocks);
  if (key.data % config_.depth != 0 || key.stride % config_.depth != 0) {
    fault("MM rows at %u with stride %u, not multiples of %u", key.data, key.stride, config_.depth);
  }
  dram_.check(key.data, uint64_t{key.num_rows - 1} * key.stride + row_bytes, "MM rows");
  if (key.unit) return;
  if (key.num_rows > 1 && key.scale_stride % 4 != 0) {
    fault("MM scale stride %u is not a multiple of 4", key.scale_stride);
  }
  if (key.format == kNvfp4 && (key.scales % 8 != 0 || key.scale_stride % 8 != 0)) {
    fault("MM nvfp4 scales at %u with stride %u, not multiples of 8", key.scales, key.scale_stride);
  }
  const uint64_t span = uint64_t{key.num_rows - 1} * key.scale_stride + key.scale_row_bytes();
  dram_.check_words(key.scales, 1, "MM scales");
  dram_.check(key.scales, span, "MM scales");
}

void Machine::mm(const Instruction& in) {
  const uint32_t rows = in.word[6] >> 16 & 0xff;
  const uint32_t first_block = in.word[6] >> 24;
  const uint64_t out_stride = low16(in.word[6]);
  const uint64_t out = address(in.rc, in.word[3]);
  const uint32_t factors = address(in.rb, in.word[2]);
  const bool unit = in.flags & kMmUnit;
  const bool accumulate = in.flags & kMmAcc;
  const bool rescale = in.flags & kMmAscale;
  const bool pair = in.flags & kMmPair;
  const uint8_t format = (in.flags & kMmFormatMask) >> kMmFormatShift;
  MatrixKey key{address(in.ra, in.word[1]), in.word[5],           factors, in.word[7],
                low16(in.word[4]),          high16(in.word[4]), unit,    format};
  if (unit) key.scales = key.scale_stride = 0;

  if (pair && format == kInt8) fault("MM PAIR needs a 4-bit weight format");
  if (pair && 2 * rows > std::min(config_.mcols, config_.act_rows)) {
    fault("MM PAIR of %u rows, but MCOLS is %u and ACT RAM has %u rows", rows, config_.mcols, config_.act_rows);
  }
  if (pair && !unit && (factors % 8 != 0 || in.word[7] % 8 != 0)) {
    fault("MM PAIR scales at %u with stride %u, not multiples of 8", factors, in.word[7]);
  }
  if (rescale && !(unit && accumulate)) fault("MM ASCALE needs UNIT and ACC");
  if (rows == 0 || rows > config_.act_rows) fault("MM of %u stationary rows, not 1 to %u", rows, config_.act_rows);
  if ((rescale || (in.flags & kMmRmax)) && rows > config_.mcols) {
    fault("MM RMAX or ASCALE of %u rows, but MCOLS is %u", rows, config_.mcols);
  }
  const uint64_t chunks = key.row_bytes(config_.depth) / config_.depth;
  if (rows > config_.mcols && chunks > kChunkFifo) {
    fault("MM of %llu chunks streamed more than once, but the chunk FIFO holds %u",
          static_cast<unsigned long long>(chunks), kChunkFifo);
  }
  if (first_block + key.num_blocks > config_.act_blocks) {
    fault("MM of ACT blocks %u to %u, but an ACT row has %u", first_block, first_block + key.num_blocks - 1,
          config_.act_blocks);
  }
  check_matrix(key);
  check_tmem(out, (rows - 1) * out_stride + key.num_rows, "MM out");
  if (rescale) check_tmem(factors, rows, "MM row factors");
  if (in.flags & kMmRmax) check_tmem(out + rows * out_stride, rows, "MM row maxima");

  MmJob job{};
  job.act = act_row(0) + uint64_t{first_block} * config_.depth;
  job.act_scales = act_scales_row(0) + first_block;
  job.act_stride = static_cast<int64_t>(act_stride_);
  job.act_scales_stride = config_.act_blocks;
  job.rows = rows;
  job.pair = pair;
  job.accumulate = accumulate;
  if (rescale) {
    // A copy: the factors may lie in the result.
    std::copy_n(tmem() + factors, rows, alpha_.begin());
    job.alpha = alpha_.data();
  }
  job.out = tmem() + out;
  job.out_stride = static_cast<int64_t>(out_stride);
  const bool rows_overlap = rows > 1 && out_stride < key.num_rows;
  if (rows_overlap) {
    // All old values are read before the first is written, so the result is made elsewhere.
    mm_result_.resize(size_t{rows} * key.num_rows);
    for (uint32_t j = 0; accumulate && j < rows; ++j) {
      std::copy_n(tmem() + out + j * out_stride, key.num_rows, mm_result_.begin() + size_t{j} * key.num_rows);
    }
    job.out = mm_result_.data();
    job.out_stride = key.num_rows;
  }
  multiply(key, job);
  for (uint32_t j = 0; rows_overlap && j < rows; ++j) {
    std::copy_n(job.out + j * job.out_stride, key.num_rows, tmem() + out + j * out_stride);
  }
  if (in.flags & kMmRmax) {
    VopJob maxima{tmem() + out + rows * out_stride, job.out, job.out, rows, key.num_rows, 1, job.out_stride, 0, 0};
    kernels_->vop[kRmax][0](maxima);
  }
}

void Machine::multiply(const MatrixKey& key, MmJob job) {
  KnownMatrix* known = nullptr;
  if (key.num_rows * key.row_bytes(config_.depth) <= kReplayedBytes && !program_->matrices.full()) {
    known = &program_->matrices.next();
  }
  const ShadowStore::Use use = shadows_.use(key, dram_, run_number_, false, known ? *known : KnownMatrix{});
  const Matrix& matrix = use.matrix;
  const bool packed =
      use.advice == ShadowStore::kUsePacked || (use.advice == ShadowStore::kPackNow && pack_matrix(use.matrix));
  job.layout = packed ? matrix.layout : PackLayout{key.num_blocks, config_.depth, config_.depth, key.format};
  kernels_->bias(job.act, job.act_stride, job.pair ? 2 * job.rows : job.rows, job.layout, bias_.data());
  job.bias = bias_.data();

  const int64_t groups = num_groups(key.num_rows);
  const int64_t group_bytes = job.layout.group_bytes();
  const auto run_groups = [&](int64_t first, int64_t end, int thread) {
    MmJob part = job;
    for (int64_t g = first; g < end; g += part.num_groups) {
      part.num_groups = packed ? end - g : std::min(kScratchGroups, end - g);
      part.num_outputs = std::min(part.num_groups * kGroup, int64_t{key.num_rows} - g * kGroup);
      part.out = job.out + g * kGroup;
      if (packed) {
        part.packed = matrix.packed + g * group_bytes;
      } else {
        auto& scratch = pack_scratch_[static_cast<size_t>(thread)];
        const size_t size = static_cast<size_t>(kScratchGroups * group_bytes);
        if (!scratch || scratch->size() < size) scratch = std::make_unique<Mapping>(size);
        for (int64_t i = 0; i < part.num_groups; ++i) {
          pack_group(key, job.layout, g + i, scratch->data() + i * group_bytes);
        }
        part.packed = scratch->data();
      }
      kernels_->mm(part);
    }
  };
  const double bytes = static_cast<double>(groups * group_bytes);
  const double weights = key.format == kInt8 ? bytes : 2 * bytes;
  const double ns = std::max(bytes / kPackedBytesPerNs, weights * static_cast<double>(job.rows) / kMultiplyAddsPerNs);
  if (ns < kParallelNs || pool_.num_threads() == 1) {
    if (packed && known) job.ahead = fetch_later_matrix(*known, use.matrix);
    return run_groups(0, groups, 0);
  }
  const int64_t wanted = std::min(static_cast<int64_t>(ns / kChunkNs), int64_t{8} * pool_.num_threads());
  const int64_t step = std::max<int64_t>(1, groups / wanted);
  pool_.run(static_cast<int>((groups + step - 1) / step), [&](int chunk, int thread) {
    run_groups(step * chunk, std::min(groups, step * (chunk + 1)), thread);
  });
}

int64_t Machine::fetch_later_matrix(KnownMatrix& known, Matrix& matrix) {
  known = {&matrix, shadows_.generation(), matrix.packed};
  const KnownMatrix* later = program_->matrices.later();
  if (!later || !later->packed) return 0;
  Lines lines;
  lines.add(later->matrix);
  lines.fetch();
  return later->packed - matrix.packed;
}

void Machine::pack_group(const MatrixKey& key, const PackLayout& layout, int64_t group, uint8_t* packed) const {
  const uint64_t row = static_cast<uint64_t>(group) * kGroup;
  PackJob job{};
  job.weights = dram_.data() + key.data + row * key.stride;
  job.scales = key.unit ? nullptr : dram_.data() + key.scales + row * key.scale_stride;
  job.weight_stride = key.stride;
  job.scale_stride = key.scale_stride;
  job.num_rows = std::min<int64_t>(kGroup, static_cast<int64_t>(key.num_rows - row));
  job.layout = layout;
  job.packed = packed;
  kernels_->pack(job);
}

bool Machine::pack_matrix(Matrix& matrix) {
  const MatrixKey& key = matrix.key;
  const uint64_t row_bytes = key.row_bytes(config_.depth);
  int64_t last_columns = config_.depth;
  if (key.format == kInt8) {
    const uint8_t* last_block = dram_.data() + key.data + row_bytes - config_.depth;
    last_columns = kernels_->last_columns(last_block, key.stride, key.num_rows, config_.depth);
  }
  PackLayout layout{key.num_blocks, config_.depth, last_columns, key.format};
  if (matrix.grows) layout.stored_columns = config_.depth;
  if (!shadows_.allocate(matrix, layout, run_number_)) return false;
  // What is not multiplied yet is packed too, as zeros.
  layout.last_columns = layout.stored_columns;
  const int64_t groups = num_groups(key.num_rows);
  const int64_t group_bytes = matrix.layout.group_bytes();
  const int64_t fair = (groups + pool_.num_threads() - 1) / pool_.num_threads();
  const int64_t step = std::clamp<int64_t>(kPackChunkBytes / group_bytes, 1, fair);
  pool_.run(static_cast<int>((groups + step - 1) / step), [&](int chunk, int) {
    for (int64_t g = step * chunk; g < std::min(groups, step * (chunk + 1)); ++g) {
      pack_group(key, layout, g, matrix.packed + g * group_bytes);
    }
  });
  if (!matrix.tracked && key.stride == row_bytes) dram_.drop_clean_pages(key.data, key.data + key.num_rows * row_bytes);
  return true;
}

void Machine::prepare(const MatrixKey& key) {
  check_matrix(key);
  const ShadowStore::Use use = shadows_.use(key, dram_, run_number_, true);
  if (use.advice == ShadowStore::kPackNow) pack_matrix(use.matrix);
}

}  // namespace npu
