// DSTEP: checks, and the distribution over threads of as many as may execute at once.
#include <algorithm>
#include <array>
#include <map>

#include "fault.h"
#include "machine.h"

namespace npu {
namespace {

constexpr double kNsPerElement = 0.1;
constexpr double kParallelNs = 4000;
constexpr int64_t kRowsAtOnce = 32;  // of a state that several steps change, to stay in the nearest cache
constexpr uint64_t kMaxRun = 1 << 14;

bool has_columns(uint32_t cols) { return cols >= 64 && cols <= kDeltaMaxColumns && cols % 64 == 0; }

// Ranges of TMEM words, none longer than kLongest.
class Ranges {
 public:
  bool meet(uint64_t begin, uint64_t size) const {
    for (auto it = ends_.lower_bound(begin < kLongest ? 0 : begin - kLongest); it != ends_.end(); ++it) {
      if (it->first >= begin + size) return false;
      if (it->second > begin) return true;
    }
    return false;
  }
  void add(uint64_t begin, uint64_t size) {
    uint64_t& end = ends_[begin];
    end = std::max(end, begin + size);
  }

 private:
  static constexpr uint64_t kLongest = 2 * kDeltaMaxColumns;
  std::map<uint64_t, uint64_t> ends_;
};

struct Words {
  uint64_t begin, size;
};

std::array<Words, 4> words_read(const DeltaStep& step, uint32_t rows, uint32_t cols) {
  return {{{step.qk, 2 * uint64_t{cols}}, {step.v, rows}, {step.decay, 1}, {step.beta, 1}}};
}

// What is read and written so far; false leaves it as it was and means that the step has to wait for the others.
class DeltaFootprint {
 public:
  bool add(const DeltaStep& step, uint32_t rows, uint32_t cols) {
    const auto reads = words_read(step, rows, cols);
    const auto written = [&](const Words& words) { return writes_.meet(words.begin, words.size); };
    if (std::any_of(reads.begin(), reads.end(), written)) return false;
    if (writes_.meet(step.out, rows) || reads_.meet(step.out, rows)) return false;
    Ranges own;
    for (const Words& words : reads) own.add(words.begin, words.size);
    if (own.meet(step.out, rows)) return false;
    for (const Words& words : reads) reads_.add(words.begin, words.size);
    writes_.add(step.out, rows);
    return true;
  }

 private:
  Ranges reads_, writes_;
};

// The group of a state, made if need be; null if it overlaps another one.
DeltaGroup* group_of(DeltaRun& run, uint64_t offset, uint32_t rows, uint32_t cols) {
  const DeltaGroup wanted{offset, rows, cols, {}};
  for (auto group = run.groups.rbegin(); group != run.groups.rend(); ++group) {
    if (group->offset == offset && group->rows == rows && group->cols == cols) return &*group;
    if (group->offset < wanted.end() && offset < group->end()) return nullptr;
  }
  run.groups.push_back(wanted);
  return &run.groups.back();
}

}  // namespace

DeltaStep Machine::delta_step(const Instruction& in) const {
  const uint64_t gates = in.word[5];
  return {address(in.rb, in.word[2]), address(in.rc, in.word[3]), gates, gates + in.word[7], in.word[6],
          (in.flags & kDstepZero) != 0};
}

void Machine::check_delta(const Instruction& in, const DeltaStep& step) const {
  const uint32_t rows = low16(in.word[4]);
  const uint32_t cols = high16(in.word[4]);
  if (!config_.dstep) fault("this machine has no DSTEP");
  if (rows == 0 || rows > kDeltaMaxRows) fault("DSTEP of %u rows, but 1 to %u are possible", rows, kDeltaMaxRows);
  if (!has_columns(cols)) fault("DSTEP of %u columns, but 64, 128, 192 and 256 are possible", cols);
  const uint32_t state = address(in.ra, in.word[1]);
  if (state % config_.depth != 0) fault("DSTEP state %u is not a multiple of %u", state, config_.depth);
  dram_.check(state, uint64_t{rows} * cols * 4, "DSTEP state");
  for (const Words& words : words_read(step, rows, cols)) check_tmem(words.begin, words.size, "DSTEP input");
  check_tmem(step.out, rows, "DSTEP result");
}

const DeltaRun& Machine::delta_run(uint64_t pc) {
  Program& program = *program_;
  const Instruction& first = program.instructions[pc];
  DeltaRun& run = program.delta_runs[pc];
  const uint32_t qk = registers_[first.rb];
  const uint32_t v = registers_[first.rc];
  if (run.num_steps > 0 && run.qk_register == qk && run.v_register == v) return run;
  run = {};
  run.qk_register = qk;
  run.v_register = v;
  DeltaFootprint footprint;
  const uint64_t end = std::min<uint64_t>(program.instructions.size(), pc + kMaxRun);
  for (uint64_t i = pc; i < end; ++i) {
    const Instruction& in = program.instructions[i];
    if (in.opcode != kDstep || in.ra != first.ra || in.rb != first.rb || in.rc != first.rc) break;
    const DeltaStep step = delta_step(in);
    try {
      check_delta(in, step);
    } catch (const Fault&) {
      break;  // it faults when its turn comes
    }
    const uint32_t rows = low16(in.word[4]);
    const uint32_t cols = high16(in.word[4]);
    const bool apart = footprint.add(step, rows, cols);
    if (!apart && i > pc) break;
    DeltaGroup* group = group_of(run, in.word[1], rows, cols);
    if (!group) break;
    group->steps.push_back(step);
    run.end = std::max(run.end, group->end());
    ++run.num_steps;
    if (!apart) break;  // it writes over its own operands
  }
  return run;
}

bool Machine::may_run(const DeltaRun& run, uint64_t pc, uint64_t base) const {
  const uint64_t last = pc + run.num_steps - 1;
  if (loop_depth_ > 0 && last >= loops_[loop_depth_ - 1].last) return false;
  return run.num_steps > 1 && retired_ + run.num_steps <= limit_ && base + run.end <= dram_.size();
}

void Machine::dstep(const Instruction& in) {
  const DeltaStep step = delta_step(in);
  check_delta(in, step);
  const DeltaRun& run = delta_run(pc_ - 1);
  const uint64_t base = registers_[in.ra];
  if (may_run(run, pc_ - 1, base)) {
    step_groups(base, run.groups, tmem());
    pc_ += run.num_steps - 1;
    retired_ += run.num_steps - 1;
    return;
  }
  // The result may lie over the operands, so it is written last.
  std::array<uint32_t, kDeltaMaxRows> result;
  const uint32_t rows = low16(in.word[4]);
  DeltaGroup group{address(in.ra, in.word[1]), rows, high16(in.word[4]), {step}};
  group.steps[0].out = 0;
  step_groups(0, {group}, result.data());
  std::copy_n(result.begin(), rows, tmem() + step.out);
}

void Machine::step_groups(uint64_t base, const std::vector<DeltaGroup>& groups, uint32_t* out) {
  uint64_t num_elements = 0;
  uint32_t most_rows = 0;
  bool once = groups.size() > 1;
  for (const DeltaGroup& group : groups) {
    num_elements += uint64_t{group.rows} * group.cols * group.steps.size();
    most_rows = std::max(most_rows, group.rows);
    once = once && group.steps.size() == 1;
  }
  const int64_t parts = once ? 1 : (most_rows + kRowsAtOnce - 1) / kRowsAtOnce;
  const auto body = [&](int chunk, int) {
    const DeltaGroup& group = groups[static_cast<size_t>(chunk / parts)];
    const int64_t first = group.rows * (chunk % parts) / parts;
    const int64_t end = group.rows * (chunk % parts + 1) / parts;
    auto* state = reinterpret_cast<uint32_t*>(dram_.data() + base + group.offset) + first * group.cols;
    for (const DeltaStep& step : group.steps) {
      const uint32_t* words = tmem();
      kernels_->delta({state, words + step.qk, words + step.v + first, words[step.decay], words[step.beta],
                       out + step.out + first, end - first, group.cols, step.zero});
    }
  };
  const int num_chunks = static_cast<int>(parts * static_cast<int64_t>(groups.size()));
  dram_.tick();
  if (static_cast<double>(num_elements) * kNsPerElement >= kParallelNs) {
    pool_.run(num_chunks, body);
  } else {
    for (int chunk = 0; chunk < num_chunks; ++chunk) body(chunk, 0);
  }
  for (const DeltaGroup& group : groups) wrote({base + group.offset, 0, 1, group.end() - group.offset});
}

}  // namespace npu
