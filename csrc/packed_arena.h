// Memory for packed matrices in huge pages; freed pieces are used again for the same size. Once more than a slab is used,
// the next one is prepared by another thread: at its first use memory can cost as much as the packing.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "mapping.h"

namespace npu {

class PackedArena {
 public:
  uint8_t* allocate(size_t size);
  void release(uint8_t* memory, size_t size);
  void clear();
  // Whether allocate() would stay within `limit` bytes of reserved memory.
  bool fits_in(size_t size, size_t limit) const;

 private:
  std::shared_ptr<Mapping> new_slab(size_t size);

  std::vector<std::shared_ptr<Mapping>> slabs_;
  std::shared_ptr<Mapping> spare_;
  size_t used_of_last_ = 0, reserved_ = 0;
  std::map<size_t, std::vector<uint8_t*>> free_;
};

}  // namespace npu
