// Construction, loading and the run loop.
#include "machine.h"

#include <algorithm>
#include <stdexcept>

#include "fault.h"
#include "float_mode.h"
#include "ticks.h"

namespace npu {
namespace {

const Kernels* kernels_called(const std::string& name) {
  const Kernels* sets[kMaxKernelSets];
  const int count = usable_kernels(sets);
  for (int i = 0; i < count; ++i) {
    if (name.empty() || name == sets[i]->name) return sets[i];
  }
  throw std::invalid_argument("there is no kernel set \"" + name + "\" that this CPU runs");
}

const MachineConfig& checked(const MachineConfig& config) {
  const auto require = [](bool holds, const char* sentence) {
    if (!holds) throw std::invalid_argument(sentence);
  };
  require(config.depth >= 16 && config.depth <= 1024 && config.depth % 16 == 0,
          "depth must be a multiple of 16 from 16 to 1024");
  require(config.act_rows >= 1 && config.act_rows <= 255, "act_rows must be 1 to 255");
  require(config.mcols >= 1 && config.mcols <= config.act_rows, "mcols must be 1 to act_rows");
  require(config.act_blocks >= 1 && config.act_blocks <= 65536, "act_blocks must be 1 to 65536");
  require(config.tmem_words >= 1 && config.tmem_words <= 1u << 28, "tmem_words must be 1 to 2^28");
  require(config.imem_instructions >= 1 && config.imem_instructions <= 1u << 24,
          "imem_instructions must be 1 to 2^24");
  require(config.dram_bytes >= 4 && config.dram_bytes <= uint64_t{1} << 32, "dram_bytes must be 4 to 2^32");
  require(config.num_threads >= 0 && config.num_threads <= 256, "num_threads must be 0 to 256");
  return config;
}

// ACT rows do not lie a power of two apart: they would share their cache sets.
uint64_t act_stride(const MachineConfig& config) { return uint64_t{config.act_blocks} * config.depth + 64; }

}  // namespace

Machine::Machine(const MachineConfig& config)
    : config_(checked(config)),
      kernels_(kernels_called(config.kernels)),
      pool_(config.num_threads, kernels_->denormals_are_zero),
      dram_(config.dram_bytes),
      shadows_(config.shadow_limit_bytes, config.dram_bytes, config.depth),
      act_stride_(act_stride(config)),
      tmem_(size_t{config.tmem_words} * 4, true),
      act_(act_stride_ * config.act_rows),
      act_scales_(size_t{config.act_rows} * config.act_blocks * 4),
      written_(size_t{config.tmem_words} * 4),
      pack_scratch_(static_cast<size_t>(pool_.num_threads())),
      bias_(size_t{config.act_rows} * config.act_blocks * kMaxSubBlocks),
      alpha_(config.act_rows),
      program_(programs_.get(nullptr, 0)) {}

void Machine::check_tmem(uint64_t base, uint64_t num_words, const char* what) const {
  if (base + num_words > config_.tmem_words) {
    fault("%s: TMEM words %llu to %llu are outside the memory of %u words", what, static_cast<unsigned long long>(base),
          static_cast<unsigned long long>(base + num_words - 1), config_.tmem_words);
  }
}

void Machine::wrote(const WrittenRows& rows, Lines* lookups) {
  dram_.stamp_rows(rows.begin, rows.stride, rows.num_rows, rows.row_bytes);
  shadows_.written(rows, dram_, lookups);
}

void Machine::map_file(const std::string& path, uint64_t offset, uint64_t size, uint64_t address) {
  dram_.map_file(path, offset, size, address);
  shadows_.written({address, 0, 1, size}, dram_);
}

void Machine::load(const uint8_t* words, size_t num_instructions) {
  if (num_instructions > config_.imem_instructions) {
    throw std::invalid_argument("the program has " + std::to_string(num_instructions) +
                                " instructions, but IMEM holds " + std::to_string(config_.imem_instructions));
  }
  program_ = programs_.get(words, num_instructions);
}

void Machine::load_from_dram(uint64_t address, uint64_t num_instructions) {
  if (address % config_.depth != 0) {
    fault("program address %llu is not a multiple of %u", static_cast<unsigned long long>(address), config_.depth);
  }
  if (num_instructions == 0 || num_instructions > config_.imem_instructions) {
    fault("a program of %llu instructions, but 1 to %u are possible", static_cast<unsigned long long>(num_instructions),
          config_.imem_instructions);
  }
  dram_.check(address, num_instructions * kWordsPerInstruction * 4, "program");
  program_ = programs_.get(dram_.data() + address, num_instructions);
}

void Machine::start_program(const std::array<uint32_t, 8>& arguments) {
  registers_.fill(0);
  std::copy(arguments.begin(), arguments.end(), registers_.begin() + 8);
  loop_depth_ = 0;
  pc_ = 0;
}

uint64_t Machine::run(const std::array<uint32_t, 8>& arguments, uint64_t max_instructions) {
  const FloatMode mode(kernels_->denormals_are_zero);
  pool_.wake();
  arguments_ = arguments;
  start_program(arguments);
  program_->matrices.restart();
  program_->stored.restart();
  retired_ = 0;
  limit_ = max_instructions;
  ++run_number_;
  fault_place_ = {};
  if (profiling_) {
    run_loop<true>();
  } else {
    run_loop<false>();
  }
  return retired_;
}

template <bool kProfile>
void Machine::run_loop() {
  uint64_t pc = 0;
  try {
    for (;;) {
      pc = pc_;
      // The program may be replaced by a chained one while an instruction runs.
      const std::shared_ptr<Program>& program = program_;
      if (pc >= program->instructions.size()) {
        fault("the program ends after %zu instructions without HALT", program->instructions.size());
      }
      if (retired_ >= limit_) {
        fault("the limit of %llu instructions is reached", static_cast<unsigned long long>(limit_));
      }
      Instruction& in = program->instructions[pc];
      pc_ = pc + 1;
      const uint64_t start = kProfile ? ticks() : 0;
      const uint64_t retired = retired_;
      ProfileEntry* entry = nullptr;
      if (kProfile) {
        const uint32_t function = in.word[6] >> 16 & 0xff;
        entry = &profile_[in.opcode == kVop && function < kNumFunctions ? 256 + function : in.opcode];
      }
      const bool running = execute(in);
      ++retired_;
      if (kProfile) {
        entry->count += retired_ - retired;
        entry->ticks += ticks() - start;
      }
      if (!running) return;
      if (loop_depth_ > 0 && pc == loops_[loop_depth_ - 1].last) {
        Loop& loop = loops_[loop_depth_ - 1];
        if (--loop.remaining > 0) {
          pc_ = loop.first;
        } else {
          --loop_depth_;
        }
      }
    }
  } catch (const Fault&) {
    fault_place_.pc = pc;
    if (pc < program_->instructions.size()) {
      const auto words = program_->words.begin() + static_cast<int64_t>(pc) * kWordsPerInstruction;
      fault_place_.words.assign(words, words + kWordsPerInstruction);
    }
    throw;
  }
}

bool Machine::execute(Instruction& in) {
  switch (in.opcode) {
    case kNop:
    case kBar:  // one slice waits for nobody
      return true;
    case kHalt:
      return halt(in);
    case kLi:
      set_register(in.rd, in.word[1]);
      return true;
    case kAddi:
      set_register(in.rd, address(in.ra, in.word[1]));
      return true;
    case kLoop:
      begin_loop(in);
      return true;
    case kRld:
      rld(in);
      return true;
    case kWaitw:
      waitw(in);
      return true;
    case kLd:
      ld(in);
      return true;
    case kSt:
      st(in);
      return true;
    case kMm:
      mm(in);
      return true;
    case kQact:
      qact(in);
      return true;
    case kQst:
      qst(in);
      return true;
    case kVop:
      vop(in);
      return true;
    case kGather:
      gather(in);
      return true;
    case kDstep:
      dstep(in);
      return true;
    case kStream:
      fault("STREAM is not in this configuration");
    default:
      fault("unknown opcode 0x%02x", in.opcode);
  }
}

void Machine::set_profiling(bool on) {
  profiling_ = on;
  profile_.fill({});
}

}  // namespace npu
