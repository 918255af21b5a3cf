// An anonymous memory reservation: zero, and of no cost until touched.
#pragma once

#include <cstddef>
#include <cstdint>

namespace npu {

// Has the system give the pages of a mapping their memory now, zeros where nothing was written; what is there stays.
// May run beside everything else that uses it. Where the system cannot (Linux before 5.14), nothing happens.
void populate(uint8_t* begin, size_t size);

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

}  // namespace npu
