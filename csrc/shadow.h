// Packed copies of matrices in DRAM, kept as long as the DRAM under them is not written.
//
// A matrix is packed when it is used for the second time without a change in between: weights once and for all, a
// block of the KV cache when it is full and keeps being read, the block that grows never.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <unordered_map>
#include <vector>

#include "dram.h"
#include "kernels.h"

namespace npu {

// The streamed operand of an MM. Without scales (UNIT) the scale fields are 0.
struct MatrixKey {
  uint32_t data, stride, scales, scale_stride, num_rows, num_blocks;
  bool unit;
  bool operator==(const MatrixKey&) const = default;
};

struct MatrixHash {
  size_t operator()(const MatrixKey& key) const {
    uint64_t h = (uint64_t{key.data} << 32 | key.scales) * 0x9e3779b97f4a7c15u;
    h ^= (uint64_t{key.num_rows} << 32 | key.num_blocks) * 0xbf58476d1ce4e5b9u + key.stride;
    return static_cast<size_t>(h ^ h >> 32);
  }
};

struct Matrix {
  uint32_t checked_at;  // DRAM clock up to which it is known to be unchanged
  bool unchanged;       // between its last two uses
  uint64_t last_run = 0;
  uint8_t* packed = nullptr;
  size_t packed_bytes = 0;
  PackLayout layout{};
};

// Memory for packed matrices in huge pages; freed pieces are used again for the same size.
class PackedArena {
 public:
  uint8_t* allocate(size_t size);
  void release(uint8_t* memory, size_t size);
  void clear();
  size_t reserved_bytes() const { return reserved_; }
  bool fits_in(size_t size, size_t limit) const;

 private:
  std::vector<std::unique_ptr<Mapping>> slabs_;
  size_t used_of_last_ = 0, reserved_ = 0;
  std::map<size_t, std::vector<uint8_t*>> free_;
};

class ShadowStore {
 public:
  explicit ShadowStore(size_t limit_bytes) : limit_(limit_bytes) {}

  // The record of a matrix that is used now; what was packed from older contents is gone. Valid until the next use().
  Matrix& use(const MatrixKey& key, const Dram& dram, uint64_t depth, uint64_t run);
  // Room for the packed form, evicting what has not been used by the last two runs; null when there is none.
  uint8_t* allocate(Matrix& matrix, size_t size, uint64_t run);
  void clear();
  size_t packed_bytes() const { return packed_; }
  size_t limit_bytes() const { return limit_; }

 private:
  void release(Matrix& matrix);
  bool evict_oldest(uint64_t run);

  size_t limit_, packed_ = 0;
  uint32_t era_ = 0;
  PackedArena arena_;
  std::unordered_map<MatrixKey, Matrix, MatrixHash> matrices_;
};

}  // namespace npu
