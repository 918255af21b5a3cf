// Memory for packed matrices in huge pages; freed pieces are used again for the same size.
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
  std::vector<std::unique_ptr<Mapping>> slabs_;
  size_t used_of_last_ = 0, reserved_ = 0;
  std::map<size_t, std::vector<uint8_t*>> free_;
};

}  // namespace npu
