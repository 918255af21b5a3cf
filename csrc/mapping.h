// An anonymous memory reservation: zero, and of no cost until touched.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

namespace npu {

class Mapping {
 public:
  // With `huge_pages` the kernel is asked for 2 MiB pages. Throws std::bad_alloc.
  explicit Mapping(size_t size_bytes, bool huge_pages = false);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  uint8_t* data() const { return data_; }
  size_t size() const { return size_; }
  template <class T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 private:
  uint8_t* base_;
  uint8_t* data_;
  size_t size_, reserved_;
};

// Has the system give part of a mapping its memory, zeros where nothing was written; what is there stays. A thread of low
// priority does it, which keeps the mapping for as long as it needs it; whoever uses the memory may go on. Where the
// system cannot (Linux before 5.14) or there is no thread to be had, nothing happens.
void populate_beside(std::shared_ptr<Mapping> mapping, size_t offset, size_t size);

}  // namespace npu
