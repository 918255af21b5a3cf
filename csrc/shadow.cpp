#include "shadow.h"

#include <algorithm>

namespace npu {
namespace {

constexpr size_t kSlabBytes = size_t{32} << 20;
constexpr size_t kMaxMatrices = size_t{1} << 17;

bool unchanged(const MatrixKey& key, const Dram& dram, uint64_t depth, uint32_t time) {
  return dram.rows_unchanged_since(time, key.data, key.stride, key.num_rows, key.num_blocks * depth) &&
         (key.unit ||
          dram.rows_unchanged_since(time, key.scales, key.scale_stride, key.num_rows, uint64_t{key.num_blocks} * 4));
}

}  // namespace

uint8_t* PackedArena::allocate(size_t size) {
  size = (size + 63) / 64 * 64;
  if (auto found = free_.find(size); found != free_.end() && !found->second.empty()) {
    uint8_t* memory = found->second.back();
    found->second.pop_back();
    return memory;
  }
  if (slabs_.empty() || used_of_last_ + size > slabs_.back()->size()) {
    slabs_.push_back(std::make_unique<Mapping>(std::max(size, kSlabBytes), true));
    reserved_ += slabs_.back()->size();
    used_of_last_ = 0;
  }
  uint8_t* memory = slabs_.back()->data() + used_of_last_;
  used_of_last_ += size;
  return memory;
}

void PackedArena::release(uint8_t* memory, size_t size) { free_[(size + 63) / 64 * 64].push_back(memory); }

void PackedArena::clear() {
  slabs_.clear();
  free_.clear();
  used_of_last_ = reserved_ = 0;
}

bool PackedArena::fits_in(size_t size, size_t limit) const {
  size = (size + 63) / 64 * 64;
  if (auto found = free_.find(size); found != free_.end() && !found->second.empty()) return true;
  if (!slabs_.empty() && used_of_last_ + size <= slabs_.back()->size()) return true;
  return reserved_ + std::max(size, kSlabBytes) <= limit;
}

Matrix& ShadowStore::use(const MatrixKey& key, const Dram& dram, uint64_t depth, uint64_t run) {
  if (era_ != dram.era()) {
    clear();
    era_ = dram.era();
  }
  if (matrices_.size() >= kMaxMatrices) clear();
  const auto [place, is_new] = matrices_.try_emplace(key);
  Matrix& matrix = place->second;
  matrix.unchanged = !is_new && unchanged(key, dram, depth, matrix.checked_at);
  if (!matrix.unchanged && matrix.packed) release(matrix);
  matrix.checked_at = dram.clock();
  matrix.last_run = run;
  return matrix;
}

uint8_t* ShadowStore::allocate(Matrix& matrix, size_t size, uint64_t run) {
  while (!arena_.fits_in(size, limit_)) {
    if (!evict_oldest(run)) return nullptr;
  }
  matrix.packed = arena_.allocate(size);
  matrix.packed_bytes = size;
  packed_ += size;
  return matrix.packed;
}

bool ShadowStore::evict_oldest(uint64_t run) {
  Matrix* oldest = nullptr;
  for (auto& [key, matrix] : matrices_) {
    if (matrix.packed && (!oldest || matrix.last_run < oldest->last_run)) oldest = &matrix;
  }
  // What the last runs used will be used again; evicting it would only move the packing around.
  if (!oldest || oldest->last_run + 2 >= run) return false;
  release(*oldest);
  return true;
}

void ShadowStore::release(Matrix& matrix) {
  arena_.release(matrix.packed, matrix.packed_bytes);
  packed_ -= matrix.packed_bytes;
  matrix.packed = nullptr;
  matrix.packed_bytes = 0;
}

void ShadowStore::clear() {
  matrices_.clear();
  arena_.clear();
  packed_ = 0;
}

}  // namespace npu
