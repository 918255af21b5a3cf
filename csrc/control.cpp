// LOOP, HALT, RLD, WAITW.
#include <cmath>
#include <cstring>

#include "fault.h"
#include "machine.h"

namespace npu {
namespace {

// Truncation to zero; what does not fit, inf and NaN give 0x80000000.
uint32_t float_to_int(uint32_t bits) {
  float x;
  std::memcpy(&x, &bits, sizeof x);
  if (!(std::fabs(x) < 2147483648.0f)) return 0x80000000;
  return static_cast<uint32_t>(static_cast<int32_t>(x));
}

}  // namespace

void Machine::begin_loop(const Instruction& in) {
  const uint64_t pc = pc_ - 1;
  const uint32_t body = in.word[1];
  const uint32_t count = address(in.ra, in.word[2]);
  const uint64_t last = pc + body;
  if (body == 0) fault("LOOP has an empty body");
  if (loop_depth_ == kMaxLoopDepth) fault("LOOP nests deeper than %d levels", kMaxLoopDepth);
  if (loop_depth_ > 0 && last >= loops_[loop_depth_ - 1].last) {
    fault("LOOP body ends at %llu, not inside the outer body that ends at %llu",
          static_cast<unsigned long long>(last), static_cast<unsigned long long>(loops_[loop_depth_ - 1].last));
  }
  if (count == 0) {
    pc_ = last + 1;
  } else {
    loops_[loop_depth_++] = {pc + 1, last, count};
  }
}

bool Machine::halt(const Instruction& in) {
  if (!(in.flags & kHaltChain)) return false;
  load_from_dram(registers_[in.ra], registers_[in.rb]);
  start_program(arguments_);
  return true;
}

void Machine::rld(const Instruction& in) {
  const uint32_t source = address(in.ra, in.word[1]);
  check_tmem(source, 1, "RLD");
  uint32_t result = tmem()[source];
  if (!(in.flags & kRldRaw)) result = float_to_int(result);
  if (in.flags & kRldMul) result *= address(in.rb, in.word[2]);
  set_register(in.rd, result);
}

void Machine::waitw(const Instruction& in) {
  const uint32_t source = address(in.ra, in.word[1]);
  const uint32_t target = address(in.rb, in.word[2]);
  const uint32_t reference = address(in.rc, in.word[3]);
  dram_.check_words(source, 1, "WAITW");
  check_tmem(target, 1, "WAITW");
  uint32_t value;
  std::memcpy(&value, dram_.data() + source, sizeof value);
  const uint32_t masked = value & in.word[4];
  bool holds = false;
  switch (in.flags & 3) {
    case 0:
      holds = masked == reference;
      break;
    case 1:
      holds = masked != reference;
      break;
    case 2:
      holds = static_cast<int32_t>(masked - reference) >= 0;
      break;
    default:
      fault("WAITW compare 3 does not exist");
  }
  if (!holds) fault("WAITW timed out: the word is 0x%08x, compared with 0x%08x", value, reference);
  tmem()[target] = value;
}

}  // namespace npu
