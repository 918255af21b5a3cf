// DSTEPs that stand one behind the other and do not see each other's results, so that all may execute at once.
#pragma once

#include <cstdint>
#include <vector>

namespace npu {

// Operands of a DSTEP but its state; TMEM words.
struct DeltaStep {
  uint64_t qk, v, decay, beta, out;
  bool zero;
};

// Steps on one state, in order; a row of it depends on that row alone.
struct DeltaGroup {
  uint64_t offset;  // bytes from the register that all states are addressed with
  uint32_t rows, cols;
  std::vector<DeltaStep> steps;
  uint64_t end() const { return offset + uint64_t{rows} * cols * 4; }
};

struct DeltaRun {
  uint64_t num_steps = 0;
  uint64_t end = 0;                      // the largest of the groups
  uint32_t qk_register = 0, v_register = 0;  // the values it holds for
  std::vector<DeltaGroup> groups;
};

}  // namespace npu
