#include "packed_arena.h"

#include <algorithm>

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
    slabs_.push_back(std::make_unique<Mapping>(std::max(size, kSlabBytes), true));
    reserved_ += slabs_.back()->size();
    used_of_last_ = 0;
  }
  uint8_t* memory = slabs_.back()->data() + used_of_last_;
  used_of_last_ += size;
  return memory;
}

void PackedArena::release(uint8_t* memory, size_t size) { free_[rounded(size)].push_back(memory); }

void PackedArena::clear() {
  slabs_.clear();
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
