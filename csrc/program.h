// Decoded programs, kept by content: callers alternate between a few, and loading one again must cost little.
#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "delta_run.h"
#include "isa.h"
#include "replay.h"
#include "shadow.h"

namespace npu {

// Bytes in DRAM: element (r, c) at begin + r * row_stride + c * element_stride.
struct ElementGrid {
  uint64_t begin, rows, cols, row_stride, element_stride;
};

// One QST: where to, and what was looked up to put it into packed copies.
struct Stored {
  ElementGrid grid;
  Lines lookups;
};

struct Program {
  uint64_t hash;
  std::vector<uint32_t> words;
  std::vector<Instruction> instructions;
  std::unordered_map<uint64_t, DeltaRun> delta_runs;  // by the pc of the first, as they were last found
  Replay<KnownMatrix> matrices;  // small ones that MM read
  Replay<Stored> stored;         // by QST
};

class ProgramCache {
 public:
  // `words` need not be aligned.
  std::shared_ptr<Program> get(const uint8_t* words, size_t num_instructions);

 private:
  static constexpr size_t kCapacity = 64;
  std::vector<std::shared_ptr<Program>> recent_;  // most recently used first
};

}  // namespace npu
