// LD, ST, GATHER: raw bits between and inside the memories.
#include <algorithm>
#include <cstring>


#include "fault.h"
#include "machine.h"

namespace npu {
namespace {

struct Block {
  uint64_t base, rows, cols, stride;
  uint64_t end() const { return base + (rows - 1) * stride + cols; }
  bool contains(uint64_t address) const {
    if (address < base || address >= end()) return false;
    if (stride == 0) return true;
    // The latest row that begins at or before the address, and the ones before it that may reach over it.
    const uint64_t last = std::min((address - base) / stride, rows - 1);
    return address - base - last * stride < cols;
  }
};

bool overlap(const Block& a, const Block& b) {
  if (a.end() <= b.base || b.end() <= a.base) return false;
  for (uint64_t r = 0; r < a.rows; ++r) {
    for (uint64_t c = 0; c < a.cols; ++c) {
      if (b.contains(a.base + r * a.stride + c)) return true;
    }
  }
  return false;
}

}  // namespace

void Machine::ld(const Instruction& in) {
  const uint32_t count = in.word[3];
  if (count == 0) return;
  const uint32_t source = address(in.ra, in.word[1]);
  const uint32_t target = address(in.rb, in.word[2]);
  dram_.check_words(source, count, "LD");
  check_tmem(target, count, "LD");
  std::memcpy(tmem() + target, dram_.data() + source, size_t{count} * 4);
}

void Machine::st(const Instruction& in) {
  const uint32_t count = in.word[3];
  if (count == 0) return;
  const uint32_t target = address(in.ra, in.word[1]);
  const uint32_t source = address(in.rb, in.word[2]);
  dram_.check_words(target, count, "ST");
  check_tmem(source, count, "ST");
  dram_.tick();
  std::memcpy(dram_.data() + target, tmem() + source, size_t{count} * 4);
  wrote({target, 0, 1, uint64_t{count} * 4});
}

void Machine::gather(const Instruction& in) {
  // One slice, number 0: its segment is at dst itself.
  const uint32_t rows = low16(in.word[3]);
  const uint32_t cols = high16(in.word[3]);
  if (rows == 0 || cols == 0) fault("GATHER of %u rows and %u columns", rows, cols);
  const Block source{address(in.ra, in.word[1]), rows, cols, in.word[4]};
  const Block target{address(in.rb, in.word[2]), rows, cols, in.word[5]};
  check_tmem(source.base, source.end() - source.base, "GATHER source");
  check_tmem(target.base, target.end() - target.base, "GATHER target");
  if (overlap(source, target)) fault("GATHER source and target overlap");
  for (uint64_t r = 0; r < rows; ++r) {
    std::memcpy(tmem() + target.base + r * target.stride, tmem() + source.base + r * source.stride, size_t{cols} * 4);
  }
}

}  // namespace npu
