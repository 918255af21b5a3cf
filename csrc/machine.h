// The machine: its memories, and one function for each instruction.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "delta_run.h"
#include "dram.h"
#include "isa.h"
#include "kernels.h"
#include "mapping.h"
#include "program.h"
#include "shadow.h"
#include "thread_pool.h"

namespace npu {

struct MachineConfig {
  uint32_t depth = 128, mcols = 4, act_rows = 4, act_blocks = 128, tmem_words = 65536, imem_instructions = 4096;
  uint64_t dram_bytes = uint64_t{1} << 32;
  int num_threads = 0;            // 0: as many as the process may use
  size_t shadow_limit_bytes = 0;  // memory for packed matrices
  std::string kernels;            // empty: the best set for this CPU
  bool dstep = true;              // whether there is a DSTEP
};

struct ProfileEntry {
  uint64_t count = 0, ticks = 0;
};

// Where and at which instruction the last run stopped with a Fault.
struct FaultPlace {
  uint64_t pc = 0;
  std::vector<uint32_t> words;  // empty when pc is past the end
};

class Machine {
 public:
  explicit Machine(const MachineConfig& config);

  void load(const uint8_t* words, size_t num_instructions);
  void load_from_dram(uint64_t address, uint64_t num_instructions);
  // Runs until HALT; returns the number of retired instructions. Throws Fault.
  uint64_t run(const std::array<uint32_t, 8>& arguments, uint64_t max_instructions);
  // Packs a matrix ahead of its first use. Throws Fault when it is not inside the memory.
  void prepare(const MatrixKey& key);

  const MachineConfig& config() const { return config_; }
  const Kernels& kernels() const { return *kernels_; }
  int num_threads() const { return pool_.num_threads(); }
  Dram& dram() { return dram_; }
  // After a write to DRAM that began with dram().tick().
  void wrote(const WrittenRows& rows, Lines* lookups = nullptr);
  // See Dram::map_file.
  void map_file(const std::string& path, uint64_t offset, uint64_t size, uint64_t address);
  uint32_t* tmem() { return tmem_.as<uint32_t>(); }
  int8_t* act_row(uint32_t row) { return act_.as<int8_t>() + row * act_stride_; }
  uint32_t* act_scales_row(uint32_t row) { return act_scales_.as<uint32_t>() + uint64_t{row} * config_.act_blocks; }
  const std::array<uint32_t, 16>& registers() const { return registers_; }
  const FaultPlace& fault_place() const { return fault_place_; }
  uint64_t retired() const { return retired_; }
  size_t packed_bytes() const { return shadows_.packed_bytes(); }

  // 256 opcodes, then the functions of VOP; ticks are of the CPU's counter, tick_rate() of them a second.
  static constexpr int kProfileSize = 256 + kNumFunctions;
  void set_profiling(bool on);
  const std::array<ProfileEntry, kProfileSize>& profile() const { return profile_; }

 private:
  struct Loop {
    uint64_t first, last;
    uint32_t remaining;
  };
  // How the elements that a VOP writes lie to those that it reads.
  enum Order : uint8_t { kUnknown, kIndependent, kSequential };
  // Element (r, c) is at base + r * row_stride, plus c if per_column.
  struct Operand {
    uint64_t base, row_stride;
    bool per_column;
  };
  // What a VOP writes and reads; a reduction writes `width` words at the end of each row.
  struct Footprint {
    uint64_t rows, cols, dst, dst_stride, width;
    bool reduction;
    const Operand *a, *b;  // null: not read
  };

  template <bool kProfile>
  void run_loop();
  // Executes one instruction; returns false after HALT. pc_ is already that of the next one.
  bool execute(Instruction& in);
  void start_program(const std::array<uint32_t, 8>& arguments);

  uint32_t address(uint8_t index, uint32_t immediate) const { return registers_[index] + immediate; }
  void set_register(uint8_t index, uint32_t value) {
    if (index != 0) registers_[index] = value;
  }
  void check_tmem(uint64_t base, uint64_t num_words, const char* what) const;

  void begin_loop(const Instruction& in);
  bool halt(const Instruction& in);
  void rld(const Instruction& in);
  void waitw(const Instruction& in);
  void ld(const Instruction& in);
  void st(const Instruction& in);
  void gather(const Instruction& in);
  void qact(const Instruction& in);
  void qst(const Instruction& in);
  void quantize(const QuantizeJob& job);
  // Asks for what a later QST of the program stores to, by its last run; where to note what `grid`'s own looks up.
  Lines* fetch_later_store(const ElementGrid& grid);
  void prefetch_elements(const ElementGrid& grid) const;
  // Quantized bytes, row r at r * source_stride of quantized_, to where QST wants them.
  void store_elements(const ElementGrid& grid, uint64_t source_stride, Lines* lookups);
  void vop(Instruction& in);
  void outer(Instruction& in);
  void mm(const Instruction& in);
  // Executes the instructions behind it too where they may execute together.
  void dstep(const Instruction& in);

  DeltaStep delta_step(const Instruction& in) const;
  void check_delta(const Instruction& in, const DeltaStep& step) const;
  // What can execute together from `pc` on, at least one step; the one at `pc` has been checked.
  const DeltaRun& delta_run(uint64_t pc);
  bool may_run(const DeltaRun& run, uint64_t pc, uint64_t base) const;
  void step_groups(uint64_t base, const std::vector<DeltaGroup>& groups, uint32_t* out);

  void run_vop(const VopJob& job, VopKernel kernel, bool whole_rows, bool splat_b, double ns);
  Order element_order(Instruction& in, const Footprint& footprint);
  static Order quick_order(const Footprint& footprint, const Operand& read);
  void check_hazard(const Footprint& footprint);
  void check_matrix(const MatrixKey& key) const;
  // False when there is no room for the packed form.
  bool pack_matrix(Matrix& matrix);
  void pack_group(const MatrixKey& key, const PackLayout& layout, int64_t group, uint8_t* packed) const;
  void multiply(const MatrixKey& key, MmJob job);
  // Notes a small packed matrix in `known` and asks for what the program's last run knew of a later one; how far that
  // is from here.
  int64_t fetch_later_matrix(KnownMatrix& known, Matrix& matrix);

  MachineConfig config_;
  const Kernels* kernels_;
  ThreadPool pool_;
  Dram dram_;
  ShadowStore shadows_;
  uint64_t act_stride_;
  Mapping tmem_, act_, act_scales_;
  Mapping written_;  // one stamp per TMEM word, for check_hazard
  uint32_t hazard_stamp_ = 0;
  std::vector<std::unique_ptr<Mapping>> pack_scratch_;  // per thread
  std::vector<int32_t> bias_;
  std::vector<uint32_t> alpha_, mm_result_;
  std::vector<int8_t> quantized_;
  std::vector<uint32_t> quantized_scales_;

  ProgramCache programs_;
  std::shared_ptr<Program> program_;
  std::array<uint32_t, 16> registers_{};
  std::array<uint32_t, 8> arguments_{};
  std::array<Loop, kMaxLoopDepth> loops_{};
  int loop_depth_ = 0;
  uint64_t pc_ = 0, retired_ = 0, limit_ = 0, run_number_ = 0;
  FaultPlace fault_place_;
  bool profiling_ = false;
  std::array<ProfileEntry, kProfileSize> profile_{};
};

}  // namespace npu
