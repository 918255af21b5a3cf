// Card memory, and the record of when each part of it was last written.
//
// Every writing instruction gets the next tick of a clock and stamps the granules that it touches: pages of 4 KiB,
// and 1 MiB, so that asking about a large untouched range is cheap.
#pragma once

#include <memory>
#include <string>

#include "mapping.h"

namespace npu {

class Dram {
 public:
  explicit Dram(uint64_t size_bytes);

  uint8_t* data() const { return data_; }
  uint64_t size() const { return size_; }

  // The checked addresses of instruction operands; `what` goes into the fault.
  void check(uint64_t address, uint64_t size, const char* what) const;
  void check_words(uint64_t address, uint64_t num_words, const char* what) const;

  uint32_t clock() const { return clock_; }
  // Changes when the clock has started anew; what was remembered under an older era is void.
  uint32_t era() const { return era_; }
  // Begin a write: later stamps carry a time after all earlier clock() values.
  void tick();
  void stamp(uint64_t begin, uint64_t end);
  // The same for `num_rows` rows of `row_bytes`, `stride` apart.
  void stamp_rows(uint64_t begin, uint64_t stride, uint64_t num_rows, uint64_t row_bytes);
  bool unchanged_since(uint32_t time, uint64_t begin, uint64_t end) const;
  bool rows_unchanged_since(uint32_t time, uint64_t begin, uint64_t stride, uint64_t num_rows,
                            uint64_t row_bytes) const;

  // Puts bytes of a file at `address` without copying (whole pages; the last part is read). The file must not
  // shrink while it is mapped. Throws std::system_error, std::invalid_argument.
  void map_file(const std::string& path, uint64_t offset, uint64_t size, uint64_t address);
  // Prepares untouched memory for its use, see populate_beside; returns at once.
  void expect(uint64_t address, uint64_t size) const { populate_beside(memory_, address, size); }
  // Gives back memory of mapped, never written file pages inside the range; they are read again when needed.
  void drop_clean_pages(uint64_t begin, uint64_t end);

 private:
  uint64_t size_;
  std::shared_ptr<Mapping> memory_;
  uint8_t* data_;
  Mapping fine_, coarse_;
  Mapping file_backed_;  // one byte per page: 1 where a file is mapped and nothing was written since
  bool any_file_ = false;
  uint32_t clock_ = 1, era_ = 0;
};

}  // namespace npu
