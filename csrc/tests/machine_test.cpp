// Runs the machine under sanitizers: random programs, most of them wrong somewhere, that use every instruction.
//
//   machine_test [first seed] [number of seeds]
//
// Each program runs on every kernel set of this CPU with one and with three threads; all must end alike, and every
// instruction must have been executed. What they
// compute is compared with the specification elsewhere (tests/lockstep); here only memory safety, defined behaviour
// and agreement count. Exit status 1 when two differ.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "fault.h"
#include "machine.h"

namespace npu {
namespace {

using Random = std::mt19937;
using Words = std::vector<uint32_t>;

constexpr uint64_t kDramBytes = 1 << 18;
constexpr uint32_t kTmemWords = 1 << 13;
constexpr uint64_t kMaxInstructions = 100;

uint32_t below(Random& random, uint32_t limit) { return static_cast<uint32_t>(random() % limit); }
bool one_in(Random& random, uint32_t n) { return below(random, n) == 0; }

// Addresses near both ends of a memory, now and then outside.
uint32_t address(Random& random, uint64_t size, uint32_t alignment) {
  if (one_in(random, 40)) return static_cast<uint32_t>(random());
  const uint32_t place = below(random, static_cast<uint32_t>(size));
  const uint32_t result = one_in(random, 8) ? static_cast<uint32_t>(size) - place % 64 : place;
  return one_in(random, 30) ? result : result / alignment * alignment;
}

uint32_t tmem(Random& random) { return address(random, kTmemWords, 1); }
uint32_t dram(Random& random, uint32_t alignment) { return address(random, kDramBytes, alignment); }

uint32_t stride(Random& random, uint32_t typical) {
  const uint32_t choices[] = {0, 1, typical, typical + 1, below(random, 2 * typical + 1), 0xffff};
  return choices[one_in(random, 20) ? 5 : below(random, 5)];
}

uint32_t word0(uint32_t opcode, Random& random, uint32_t num_flags) {
  // Registers are mostly R0, so that immediates decide.
  const uint32_t registers = one_in(random, 6) ? random() & 0xffff : 0;
  return opcode | registers << 8 | below(random, 1u << num_flags) << 24;
}

Words mm(Random& random, uint32_t depth) {
  const bool four_bit = one_in(random, 2), pair = one_in(random, four_bit ? 3 : 80);
  const uint32_t n = 1 + below(random, 70), kb = 1 + below(random, 6), m = 1 + below(random, pair ? 2 : 9);
  const bool unit = one_in(random, 3);
  Words w = {word0(kMm, random, 3), dram(random, depth), dram(random, 4), tmem(random)};
  w[0] = (w[0] & ~(1u << 24)) | static_cast<uint32_t>(unit) << 24;
  if (unit && one_in(random, 2)) {
    w[0] |= (kMmUnit | kMmAcc | kMmAscale) << 24;
    w[2] = tmem(random);
  }
  if (four_bit) w[0] |= (1 + below(random, 3)) << (24 + kMmFormatShift);
  if (pair) w[0] |= uint32_t{kMmPair} << 24;
  w.push_back(n | kb << 16);
  w.push_back(stride(random, kb) * depth);
  w.push_back(stride(random, n) | m << 16 | below(random, 4) << 24);
  w.push_back(stride(random, kb) * (four_bit ? 8 : 4));
  if (four_bit && !one_in(random, 10)) w[2] = w[2] / 8 * 8;
  return w;
}

Words vop(Random& random) {
  const uint32_t rows = 1 + below(random, 12), cols = 1 + below(random, 150);
  const uint32_t function = one_in(random, 40) ? below(random, 256) : below(random, kNumFunctions);
  const uint32_t bmode = function == kOuter && !one_in(random, 10) ? uint32_t{kPerRow} : below(random, 4);
  Words w = {word0(kVop, random, 2), tmem(random), tmem(random), tmem(random), rows | cols << 16};
  if (one_in(random, 3)) w[2] = w[1] + below(random, 3) - 1;
  if (one_in(random, 3)) w[3] = w[1] + below(random, 200) - 100;
  w.push_back(stride(random, cols) | stride(random, cols) << 16);
  w.push_back(stride(random, cols) | function << 16 | bmode << 24);
  w.push_back(function == kOuter ? tmem(random) : static_cast<uint32_t>(random()));
  return w;
}

Words quantizer(Random& random, uint32_t depth) {
  const uint32_t rows = 1 + below(random, 5), kb = 1 + below(random, 3);
  if (one_in(random, 2)) {
    return {word0(kQact, random, 4),        tmem(random), rows | below(random, 4) << 8 | kb << 16,
            stride(random, kb * depth), tmem(random), tmem(random)};
  }
  const bool column = one_in(random, 2);
  return {word0(kQst, random, 2),     dram(random, 1), dram(random, 1), dram(random, 4), rows | kb << 16,
          stride(random, kb * depth), column ? 1 : stride(random, kb * depth), column ? stride(random, 300) : 1};
}

Words control(Random& random, uint32_t program_size) {
  switch (below(random, 8)) {
    case 0:
      return {word0(kLoop, random, 1), below(random, 6), below(random, 5)};
    case 1:
      return {kLi | below(random, 16) << 20, below(random, 200)};
    case 2:
      return {word0(kAddi, random, 1) | below(random, 16) << 20, below(random, 200)};
    case 3:
      return {word0(kRld, random, 2), tmem(random), below(random, 5)};
    case 4:
      return {word0(kWaitw, random, 2), dram(random, 4), tmem(random), below(random, 2), 0};
    case 5:
      return {word0(kGather, random, 0), tmem(random), tmem(random),
              (1 + below(random, 5)) | (1 + below(random, 90)) << 16,
              stride(random, 90), stride(random, 90)};
    case 6:
      return {one_in(random, 20) ? kHalt | below(random, 2) << 24 | below(random, program_size) << 8 : uint32_t{kBar}};
    default:
      return {one_in(random, 10) ? static_cast<uint32_t>(random()) : uint32_t{kNop}};
  }
}

Words transfer(Random& random) {
  return {word0(one_in(random, 2) ? kLd : kSt, random, 0), dram(random, 4), tmem(random), below(random, 200)};
}

Words delta(Random& random, uint32_t depth) {
  const uint32_t rows = one_in(random, 30) ? below(random, 300) : 1 + below(random, 40);
  const uint32_t cols = one_in(random, 30) ? below(random, 400) : 64 + 64 * below(random, 4);
  // Few states, so that steps share them.
  const uint32_t state = one_in(random, 3) ? dram(random, depth) : below(random, 4) * 0x8000;
  return {word0(kDstep, random, 1), state, tmem(random), tmem(random), rows | cols << 16, tmem(random), tmem(random),
          below(random, 70)};
}

Words random_program(Random& random, uint32_t depth) {
  const uint32_t size = 5 + below(random, 25);
  Words program;
  for (uint32_t i = 0; i < size; ++i) {
    Words instruction;
    switch (below(random, 7)) {
      case 0:
      case 1:
        instruction = mm(random, depth);
        break;
      case 2:
        instruction = vop(random);
        break;
      case 3:
        instruction = quantizer(random, depth);
        break;
      case 4:
        instruction = transfer(random);
        break;
      case 5:
        for (uint32_t n = below(random, 4); n > 0; --n) {
          const Words step = delta(random, depth);
          program.insert(program.end(), step.begin(), step.end());
        }
        instruction = delta(random, depth);
        break;
      default:
        instruction = control(random, size);
    }
    instruction.resize(kWordsPerInstruction);
    // A loop of one instruction uses matrices again, so that packed copies come into play.
    if (one_in(random, 4)) {
      const Words loop = {kLoop, 1, 3, 0, 0, 0, 0, 0};
      program.insert(program.end(), loop.begin(), loop.end());
    }
    program.insert(program.end(), instruction.begin(), instruction.end());
  }
  if (!one_in(random, 5)) program.insert(program.end(), {kHalt, 0, 0, 0, 0, 0, 0, 0});
  return program;
}

uint32_t random_float(Random& random) {
  if (one_in(random, 10)) return static_cast<uint32_t>(random());
  const float value = static_cast<float>(static_cast<int32_t>(random())) / 2147483648.0f;
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

void fill(Machine& machine, Random random) {
  for (uint32_t i = 0; i < kTmemWords; ++i) machine.tmem()[i] = random_float(random);
  machine.dram().tick();
  for (uint64_t i = 0; i < kDramBytes / 2; i += 4) {
    const uint32_t word = i % 1024 < 600 ? random_float(random) : 0;
    std::memcpy(machine.dram().data() + i, &word, sizeof word);
  }
  machine.wrote({0, 0, 1, kDramBytes / 2});
}

// How a run ended, and a hash of all that it can have changed.
struct Outcome {
  std::string fault;
  uint64_t pc, retired, state;
  bool operator==(const Outcome&) const = default;
};

uint64_t hash(uint64_t seed, const void* data, size_t size) {
  const uint8_t* bytes = static_cast<const uint8_t*>(data);
  for (size_t i = 0; i < size; ++i) seed = (seed ^ bytes[i]) * 0x100000001b3u;
  return seed;
}

Outcome run(Machine& machine, const Words& program) {
  Outcome outcome{};
  machine.load(reinterpret_cast<const uint8_t*>(program.data()), program.size() / kWordsPerInstruction);
  try {
    machine.run({1, 2, 3, 128, 4096}, kMaxInstructions);
  } catch (const Fault& fault) {
    outcome.fault = fault.what();
    outcome.pc = machine.fault_place().pc;
  }
  outcome.retired = machine.retired();
  outcome.state = hash(1, machine.registers().data(), 64);
  if (!outcome.fault.empty()) return outcome;  // the failing instruction may have written a part
  outcome.state = hash(outcome.state, machine.tmem(), size_t{kTmemWords} * 4);
  outcome.state = hash(outcome.state, machine.dram().data(), kDramBytes);
  return outcome;
}

std::vector<std::unique_ptr<Machine>> machines(uint32_t depth) {
  std::vector<std::unique_ptr<Machine>> result;
  const Kernels* sets[kMaxKernelSets];
  const int count = usable_kernels(sets);
  for (int i = 0; i < count; ++i) {
    for (const int threads : {1, 3}) {
      // The second of each has no room for packed copies.
      result.push_back(std::make_unique<Machine>(MachineConfig{depth, 6, 8, 16, kTmemWords, 256, kDramBytes, threads,
                                                               threads == 1 ? size_t{1} << 28 : 0, sets[i]->name}));
    }
  }
  return result;
}

struct Tally {
  int halted = 0, faulted = 0, differing = 0;
};

void report(uint32_t seed, const Machine& machine, const Outcome& outcome, const Outcome& expected) {
  std::printf("seed %u, %s kernels, %d threads: \"%s\" at %llu, but \"%s\" at %llu on the first machine\n", seed,
              machine.kernels().name, machine.num_threads(), outcome.fault.c_str(),
              static_cast<unsigned long long>(outcome.pc), expected.fault.c_str(),
              static_cast<unsigned long long>(expected.pc));
}

// Runs a program twice on all machines; how it ended on the first.
Outcome run_on_all(uint32_t seed, const Words& program, std::vector<std::unique_ptr<Machine>>& fleet, Tally& tally) {
  Outcome expected{};
  for (size_t i = 0; i < fleet.size(); ++i) {
    fill(*fleet[i], Random(seed));
    run(*fleet[i], program);
    const Outcome outcome = run(*fleet[i], program);
    if (i == 0) {
      expected = outcome;
    } else if (!(outcome == expected)) {
      report(seed, *fleet[i], outcome, expected);
      ++tally.differing;
    }
  }
  return expected;
}

void run_seed(uint32_t seed, uint32_t depth, std::vector<std::unique_ptr<Machine>>& fleet, Tally& tally) {
  Random random(seed);
  Words program = random_program(random, depth);
  // Where it faults, a NOP takes the instruction's place, so that what follows is reached too.
  for (;;) {
    const Outcome outcome = run_on_all(seed, program, fleet, tally);
    if (outcome.fault.empty()) {
      ++tally.halted;
      return;
    }
    ++tally.faulted;
    const size_t place = outcome.pc * kWordsPerInstruction;
    if (place >= program.size() || outcome.retired == kMaxInstructions || program[place] == kNop) return;
    std::fill_n(program.begin() + static_cast<std::ptrdiff_t>(place), kWordsPerInstruction, 0u);
  }
}

}  // namespace
}  // namespace npu

namespace npu {
namespace {

// Instructions and vector functions that no program has completed: a hole in the test.
int count_unused(const Machine& machine) {
  int unused = 0;
  const auto expect = [&](int index) {
    if (machine.profile()[static_cast<size_t>(index)].count > 0) return;
    std::printf("never executed: %s %d\n", index < 256 ? "opcode" : "VOP function", index < 256 ? index : index - 256);
    ++unused;
  };
  for (const int opcode :
       {kNop, kHalt, kLi, kAddi, kLoop, kBar, kRld, kWaitw, kLd, kSt, kDstep, kMm, kQact, kQst, kGather}) {
    expect(opcode);
  }
  for (int function = 0; function < kNumFunctions; ++function) {
    if (function != 7) expect(256 + function);
  }
  return unused;
}

}  // namespace
}  // namespace npu

int main(int argc, char** argv) {
  const uint32_t first = argc > 1 ? static_cast<uint32_t>(std::strtoul(argv[1], nullptr, 10)) : 1;
  const uint32_t count = argc > 2 ? static_cast<uint32_t>(std::strtoul(argv[2], nullptr, 10)) : 100;
  npu::Tally tally;
  int unused = 0;
  for (const uint32_t depth : {32u, 128u}) {
    auto fleet = npu::machines(depth);
    fleet[0]->set_profiling(true);
    for (uint32_t seed = first; seed < first + count; ++seed) npu::run_seed(seed, depth, fleet, tally);
    unused += npu::count_unused(*fleet[0]);
  }
  std::printf("%d programs halted, %d faulted, %d runs differed\n", tally.halted, tally.faulted, tally.differing);
  return tally.differing == 0 && unused == 0 ? 0 : 1;
}
