#include "packed_arena.h"

#include <algorithm>
#include <utility>

namespace npu {
namespace {

constexpr size_t kSlabBytes = size_t{32} << 20;
size_t rounded(size_t size) { return (size + 63) / 64 * 64; }

}  // namespace

uint8_t* PackedArena::allocate(size_t size) {
  size = rounded(size);
  if (auto found = free_.find(size); found != free_.end() && !found->second.empty()) {
    uint8_t* memory = found->second.back();
    found->second.pop_back();
    return memory;
  }
  if (slabs_.empty() || used_of_last_ + size > slabs_.back()->size()) {
    slabs_.push_back(new_slab(size));
    reserved_ += slabs_.back()->size();
    used_of_last_ = 0;
  }
  uint8_t* memory = slabs_.back()->data() + used_of_last_;
  used_of_last_ += size;
  return memory;
}

std::shared_ptr<Mapping> PackedArena::new_slab(size_t size) {
  if (size > kSlabBytes) return std::make_shared<Mapping>(size, true);
  std::shared_ptr<Mapping> slab = std::exchange(spare_, nullptr);
  if (!slab) slab = std::make_shared<Mapping>(kSlabBytes, true);
  if (!slabs_.empty()) {
    spare_ = std::make_shared<Mapping>(kSlabBytes, true);
    populate_beside(spare_, 0, spare_->size());
  }
  return slab;
}

void PackedArena::release(uint8_t* memory, size_t size) { free_[rounded(size)].push_back(memory); }

void PackedArena::clear() {
  slabs_.clear();
  spare_.reset();
  free_.clear();
  used_of_last_ = reserved_ = 0;
}

bool PackedArena::fits_in(size_t size, size_t limit) const {
  size = rounded(size);
  if (auto found = free_.find(size); found != free_.end() && !found->second.empty()) return true;
  if (!slabs_.empty() && used_of_last_ + size <= slabs_.back()->size()) return true;
  return reserved_ + std::max(size, kSlabBytes) <= limit;
}

}  // namespace npu
