// Opcodes, functions and flag bits of the instruction set, and an instruction with its word 0 taken apart.
#pragma once

#include <cstdint>

namespace npu {

enum Opcode : uint8_t {
  kNop = 0x00,
  kHalt = 0x01,
  kLi = 0x02,
  kAddi = 0x03,
  kLoop = 0x04,
  kBar = 0x05,
  kRld = 0x06,
  kWaitw = 0x07,
  kLd = 0x10,
  kSt = 0x11,
  kDstep = 0x12,
  kStream = 0x13,
  kMm = 0x20,
  kQact = 0x21,
  kQst = 0x22,
  kVop = 0x30,
  kGather = 0x40,
};

enum Function : uint8_t {
  kAdd = 0,
  kSub = 1,
  kRsub = 2,
  kMul = 3,
  kMax = 4,
  kMin = 5,
  kOuter = 6,
  kCopy = 8,
  kExp2 = 9,
  kRecip = 10,
  kRsqrt = 11,
  kAbs = 12,
  kFill = 13,
  kExp2Sub = 14,
  kLog2 = 15,
  kRsum = 16,
  kRmax = 17,
  kRssq = 18,
  kRdot = 19,
  kArgmax = 20,
  kNumFunctions = 21,
};

enum BMode : uint8_t { kMatrix = 0, kPerRow = 1, kPerColumn = 2, kImmediate = 3 };

enum Flag : uint8_t {
  kHaltChain = 1,
  kRldRaw = 1,
  kRldMul = 2,
  kDstepZero = 1,
  kMmUnit = 1,
  kMmAcc = 2,
  kMmRmax = 4,
  kMmAscale = 8,
  kMmFormatMask = 0x30,
  kMmFormatShift = 4,
  kMmPair = 0x40,
  kQactRow = 1,
  kQactColumnScale = 2,
  kQactRowScale = 4,
  kQactDup = 8,
  kQstRow = 1,
  kQstHalf = 2,
  kOuterScalarDecay = 1,
  kOuterNoDecay = 2,
};

constexpr int kWordsPerInstruction = 8;
constexpr int kMaxLoopDepth = 4;
constexpr int kOuterMaxColumns = 256;
constexpr uint32_t kDeltaMaxRows = 256;
constexpr uint32_t kDeltaMaxColumns = 256;
// A row that is streamed more than once (M > MCOLS) must fit the MXU's chunk FIFO.
constexpr uint32_t kChunkFifo = 1024;

struct Instruction {
  uint8_t opcode, ra, rb, rc, rd, flags;
  uint32_t word[kWordsPerInstruction];
  // The operand distances for which a VOP was last found free of hazards; all else that matters is static.
  uint32_t checked_a, checked_b;
  uint8_t checked_order;
};

inline Instruction decode(const uint32_t* words) {
  Instruction result{};
  const uint32_t w0 = words[0];
  result.opcode = static_cast<uint8_t>(w0);
  result.ra = w0 >> 8 & 15;
  result.rb = w0 >> 12 & 15;
  result.rc = w0 >> 16 & 15;
  result.rd = w0 >> 20 & 15;
  result.flags = static_cast<uint8_t>(w0 >> 24);
  for (int i = 0; i < kWordsPerInstruction; ++i) result.word[i] = words[i];
  return result;
}

inline uint32_t low16(uint32_t word) { return word & 0xffff; }
inline uint32_t high16(uint32_t word) { return word >> 16; }

}  // namespace npu
