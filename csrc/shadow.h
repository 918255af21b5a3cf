// Packed copies of the matrices that MM streams from DRAM.
//
// A matrix is packed at its second use. Large ones, the weights, must not have changed since the first; a write
// under them is noticed at the next use by the DRAM's stamps and drops the copy. Small ones, the blocks of the KV
// cache, are written all the time: they are found by page at the write itself, and the few written bytes are put
// into the copy too. A block of V^T fills up column by column; what is still zero at its end is not multiplied.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "dram.h"
#include "kernels.h"
#include "packed_arena.h"

namespace npu {

// The streamed operand of an MM. Without scales (UNIT) the scale fields are 0.
struct MatrixKey {
  uint32_t data, stride, scales, scale_stride, num_rows, num_blocks;
  bool unit;
  uint8_t format = kInt8;
  bool operator==(const MatrixKey&) const = default;

  // Bytes of a row that are read: whole chunks, and its scale words.
  uint64_t row_bytes(uint64_t depth) const {
    return (format == kInt8 ? uint64_t{num_blocks} : (uint64_t{num_blocks} + 1) / 2) * depth;
  }
  uint64_t scale_row_bytes() const { return (format == kNvfp4 ? 2 * uint64_t{num_blocks} + 1 : num_blocks) * 4; }
};

struct MatrixHash {
  size_t operator()(const MatrixKey& key) const {
    uint64_t h = (uint64_t{key.data} << 32 | key.scales) * 0x9e3779b97f4a7c15u;
    h ^= (uint64_t{key.num_rows} << 32 | key.num_blocks) * 0xbf58476d1ce4e5b9u + key.stride + key.format;
    return static_cast<size_t>(h ^ h >> 32);
  }
};

struct Matrix {
  MatrixKey key;
  uint8_t* packed = nullptr;
  size_t packed_bytes = 0;
  PackLayout layout{};
  uint64_t last_run = 0;
  uint32_t checked_at = 0;  // untracked: DRAM clock up to which it is known to be unchanged
  bool tracked = false;     // writes are put into the copy
  bool stale = false;       // tracked: too much was written, the copy must be made anew
  bool grows = false;       // the copy is to have room for columns that are zero now
  uint64_t last_write = 0;  // tracked: number of the write that was last looked at
};

// Bytes that one instruction or host call wrote: rows of equal length, `stride` apart.
struct WrittenRows {
  uint64_t begin, stride, num_rows, row_bytes;
  uint64_t end() const { return begin + (num_rows - 1) * stride + row_bytes; }
};

// A matrix as it was found once; it stands only as long as the store's generation has not changed.
struct KnownMatrix {
  Matrix* matrix = nullptr;
  uint32_t generation = 0;
  const uint8_t* packed = nullptr;
};

// Places in memory that will be read soon.
struct Lines {
  static constexpr int kMax = 12;
  std::array<const void*, kMax> place;
  int count = 0;

  void add(const void* line) {
    if (count < kMax) place[static_cast<size_t>(count++)] = line;
  }
  void add(const Matrix* matrix) {
    for (size_t i = 0; i < sizeof *matrix; i += 64) add(reinterpret_cast<const char*>(matrix) + i);
  }
  void fetch() const {
    for (int i = 0; i < count; ++i) __builtin_prefetch(place[static_cast<size_t>(i)]);
  }
};

class ShadowStore {
 public:
  ShadowStore(size_t limit_bytes, uint64_t dram_bytes, uint64_t depth);

  enum Advice { kUsePacked, kPackNow, kUseOnce };
  struct Use {
    Matrix& matrix;  // valid until the next use()
    Advice advice;
  };
  // `run` numbers the runs of the machine; with `prepare` the matrix is to be packed at its first use. `guess` may be
  // out of date.
  Use use(const MatrixKey& key, const Dram& dram, uint64_t run, bool prepare = false, const KnownMatrix& guess = {});
  // Room for the packed form, evicting what the last runs have not used; null when there is none.
  uint8_t* allocate(Matrix& matrix, const PackLayout& layout, uint64_t run);
  // To be called after every write to DRAM. Notes in `lookups`, if given, what it had to look up.
  void written(const WrittenRows& rows, const Dram& dram, Lines* lookups = nullptr);
  // Changes when matrices are forgotten.
  uint32_t generation() const { return generation_; }
  size_t packed_bytes() const { return packed_; }

 private:
  bool trackable(const MatrixKey& key) const;
  void track(Matrix& matrix);
  void untrack(Matrix& matrix);
  template <class Visit>
  void for_each_page(const Matrix& matrix, Visit visit);
  // The number of a set of `matrices`.
  uint32_t new_set(std::vector<Matrix*> matrices);
  // Puts each page of `matrix` into the set whose number `change` makes of that of the one it is in.
  template <class Change>
  void move_pages(const Matrix& matrix, Change change);
  void apply(const WrittenRows& rows, const Dram& dram, Matrix& matrix) const;
  void apply_data(const WrittenRows& rows, const Dram& dram, Matrix& matrix) const;
  template <class Piece>
  bool patch(const Dram& dram, Matrix& matrix, int64_t column, int64_t begin_row, int64_t end_row) const;
  void apply_scales(const WrittenRows& rows, const Dram& dram, Matrix& matrix) const;
  void release(Matrix& matrix);
  bool evict_oldest(uint64_t run);
  void clear();

  size_t limit_, packed_ = 0;
  uint64_t depth_, write_number_ = 0;
  uint32_t era_ = 0, generation_ = 0;
  PackedArena arena_;
  std::unordered_map<MatrixKey, Matrix, MatrixHash> matrices_;
  // The tracked matrices that have bytes in a page. Pages with the same ones share a set, so that a column of V^T, which
  // has a page for each byte, looks into few. Number 0 is the empty set.
  struct PageSet {
    std::vector<Matrix*> matrices;
    uint64_t num_pages = 0;
  };
  Mapping page_sets_;  // per DRAM page: index into sets_
  std::vector<PageSet> sets_;
  std::vector<uint32_t> free_sets_;
};

}  // namespace npu
