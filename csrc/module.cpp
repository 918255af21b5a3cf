// The Python face of the machine. Only types and ranges are checked here; the wrapper in native.py has the contracts.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/array.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <memory>
#include <system_error>
#include <tuple>
#include <utility>

#include "fault.h"
#include "machine.h"
#include "ticks.h"

namespace nb = nanobind;

namespace npu {
namespace {

template <class T>
using Input = nb::ndarray<const T, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
template <class T>
using Input2d = nb::ndarray<const T, nb::ndim<2>, nb::c_contig, nb::device::cpu>;
template <class T>
using Input3d = nb::ndarray<const T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <class T>
nb::ndarray<nb::numpy, T> new_array(std::initializer_list<size_t> shape, T*& data) {
  size_t size = 1;
  for (const size_t extent : shape) size *= extent;
  auto storage = std::make_unique<T[]>(size);
  data = storage.get();
  nb::capsule owner(data, [](void* p) noexcept { delete[] static_cast<T*>(p); });
  storage.release();
  return nb::ndarray<nb::numpy, T>(data, shape, owner);
}

// A machine that runs without the GIL must be left alone by other Python threads.
class PythonMachine {
 public:
  explicit PythonMachine(const MachineConfig& config) : machine(config) {}

  class Use {
   public:
    explicit Use(PythonMachine& owner) : owner_(owner) {
      if (owner.busy_.exchange(true)) throw std::runtime_error("the machine is running in another thread");
    }
    ~Use() { owner_.busy_ = false; }
    Use(const Use&) = delete;
    Use& operator=(const Use&) = delete;
    Machine* operator->() const { return &owner_.machine; }

   private:
    PythonMachine& owner_;
  };

  Machine machine;

 private:
  std::atomic<bool> busy_{false};
};

void require_range(uint64_t begin, uint64_t size, uint64_t limit, const char* memory) {
  if (begin > limit || size > limit - begin) {
    throw std::out_of_range(std::string(memory) + " range " + std::to_string(begin) + " + " + std::to_string(size) +
                            " is outside its size " + std::to_string(limit));
  }
}

void construct(PythonMachine* place, uint32_t depth, uint32_t mcols, uint32_t act_rows, uint32_t act_blocks,
               uint32_t tmem_words, uint32_t imem_instructions, uint64_t dram_bytes, int num_threads,
               size_t shadow_limit_bytes, const std::string& kernels, bool dstep) {
  new (place) PythonMachine(MachineConfig{depth, mcols, act_rows, act_blocks, tmem_words, imem_instructions, dram_bytes,
                                          num_threads, shadow_limit_bytes, kernels, dstep});
}

void load(PythonMachine& self, const Input<uint8_t>& program) {
  if (program.size() % 32 != 0) throw std::invalid_argument("a program is whole instructions of 32 bytes");
  PythonMachine::Use(self)->load(program.data(), program.size() / 32);
}

uint64_t run(PythonMachine& self, const std::vector<uint32_t>& arguments, uint64_t max_instructions) {
  std::array<uint32_t, 8> values{};
  if (arguments.size() > values.size()) throw std::invalid_argument("a run has at most 8 arguments");
  std::copy(arguments.begin(), arguments.end(), values.begin());
  const PythonMachine::Use use(self);
  const nb::gil_scoped_release release;
  return use->run(values, max_instructions);
}

auto read_dram(PythonMachine& self, uint64_t address, uint64_t size) {
  const PythonMachine::Use use(self);
  require_range(address, size, use->dram().size(), "DRAM");
  uint8_t* data;
  auto result = new_array<uint8_t>({size}, data);
  std::memcpy(data, use->dram().data() + address, size);
  return result;
}

void write_dram(PythonMachine& self, uint64_t address, const Input<uint8_t>& data) {
  const PythonMachine::Use use(self);
  require_range(address, data.size(), use->dram().size(), "DRAM");
  if (data.size() == 0) return;
  use->dram().tick();
  std::memcpy(use->dram().data() + address, data.data(), data.size());
  use->wrote({address, 0, 1, data.size()});
}

// Groups of rows of bytes to places `group_stride` and `row_stride` apart, all of which the caller has checked to end
// before `end`.
void write_block(PythonMachine& self, uint64_t address, uint64_t end, uint64_t group_stride, uint64_t row_stride,
                 const Input3d<uint8_t>& data) {
  const PythonMachine::Use use(self);
  const uint64_t num_groups = data.shape(0), num_rows = data.shape(1), row_bytes = data.shape(2);
  if (data.size() == 0) return;
  Dram& dram = use->dram();
  require_range(address, end - address, dram.size(), "DRAM");
  const nb::gil_scoped_release release;
  const uint8_t* source = data.data();
  for (uint64_t g = 0; g < num_groups; ++g) {
    const uint64_t begin = address + g * group_stride;
    dram.tick();
    for (uint64_t r = 0; r < num_rows; ++r, source += row_bytes) {
      std::memcpy(dram.data() + begin + r * row_stride, source, row_bytes);
    }
    use->wrote({begin, row_stride, num_rows, row_bytes});
  }
}

auto dram_view(nb::handle_t<PythonMachine> self, uint64_t address, uint64_t size) {
  Dram& dram = nb::cast<PythonMachine&>(self).machine.dram();
  require_range(address, size, dram.size(), "DRAM");
  return nb::ndarray<nb::numpy, const uint8_t, nb::ndim<1>>(dram.data() + address, {size}, self);
}

// Not a use of the machine: it may run meanwhile.
void expect(PythonMachine& self, uint64_t address, uint64_t size) {
  const Dram& dram = self.machine.dram();
  require_range(address, size, dram.size(), "DRAM");
  dram.expect(address, size);
}

void map_image(PythonMachine& self, const std::string& path, uint64_t file_offset, uint64_t size, uint64_t address) {
  const PythonMachine::Use use(self);
  require_range(address, size, use->dram().size(), "DRAM");
  try {
    use->map_file(path, file_offset, size, address);
  } catch (const std::system_error& error) {
    errno = error.code().value();
    PyErr_SetFromErrnoWithFilename(PyExc_OSError, path.c_str());
    throw nb::python_error();
  }
}

auto read_tmem(PythonMachine& self, uint64_t address, uint64_t size) {
  const PythonMachine::Use use(self);
  require_range(address, size, use->config().tmem_words, "TMEM");
  uint32_t* data;
  auto result = new_array<uint32_t>({size}, data);
  std::memcpy(data, use->tmem() + address, size * 4);
  return result;
}

void write_tmem(PythonMachine& self, uint64_t address, const Input<uint32_t>& data) {
  const PythonMachine::Use use(self);
  require_range(address, data.size(), use->config().tmem_words, "TMEM");
  if (data.size() > 0) std::memcpy(use->tmem() + address, data.data(), data.size() * 4);
}

auto read_act(PythonMachine& self) {
  const PythonMachine::Use use(self);
  const MachineConfig& config = use->config();
  const size_t row_bytes = size_t{config.act_blocks} * config.depth;
  int8_t* data;
  uint32_t* scales;
  auto data_array = new_array<int8_t>({config.act_rows, row_bytes}, data);
  auto scales_array = new_array<uint32_t>({config.act_rows, config.act_blocks}, scales);
  for (uint32_t r = 0; r < config.act_rows; ++r) {
    std::memcpy(data + r * row_bytes, use->act_row(r), row_bytes);
    std::memcpy(scales + size_t{r} * config.act_blocks, use->act_scales_row(r), size_t{config.act_blocks} * 4);
  }
  return std::pair(data_array, scales_array);
}

void write_act(PythonMachine& self, const Input2d<int8_t>& data, const Input2d<uint32_t>& scales) {
  const PythonMachine::Use use(self);
  const MachineConfig& config = use->config();
  const size_t row_bytes = size_t{config.act_blocks} * config.depth;
  if (data.shape(0) != config.act_rows || data.shape(1) != row_bytes || scales.shape(0) != config.act_rows ||
      scales.shape(1) != config.act_blocks) {
    throw std::invalid_argument(
        "write_act takes int8 [act_rows, act_blocks * depth] and uint32 [act_rows, act_blocks]");
  }
  for (uint32_t r = 0; r < config.act_rows; ++r) {
    std::memcpy(use->act_row(r), data.data() + r * row_bytes, row_bytes);
    std::memcpy(use->act_scales_row(r), scales.data() + size_t{r} * config.act_blocks, size_t{config.act_blocks} * 4);
  }
}

void prepare(PythonMachine& self, uint32_t data, uint32_t stride, uint32_t scales, uint32_t scale_stride,
             uint32_t num_rows, uint32_t num_blocks, bool unit) {
  const PythonMachine::Use use(self);
  const nb::gil_scoped_release release;
  use->prepare({data, stride, unit ? 0 : scales, unit ? 0 : scale_stride, num_rows, num_blocks, unit});
}

std::vector<std::string> kernel_sets() {
  const Kernels* sets[kMaxKernelSets];
  const int count = usable_kernels(sets);
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.emplace_back(sets[i]->name);
  return names;
}

// (opcode, VOP function or -1, count, seconds) of what was executed.
std::vector<std::tuple<int, int, uint64_t, double>> profile(PythonMachine& self) {
  const PythonMachine::Use use(self);
  std::vector<std::tuple<int, int, uint64_t, double>> result;
  for (int i = 0; i < Machine::kProfileSize; ++i) {
    const ProfileEntry& entry = use->profile()[static_cast<size_t>(i)];
    if (entry.count == 0) continue;
    result.emplace_back(i < 256 ? i : int{kVop}, i < 256 ? -1 : i - 256, entry.count,
                        static_cast<double>(entry.ticks) / tick_rate());
  }
  return result;
}

}  // namespace
}  // namespace npu

NB_MODULE(_native, m) {
  using namespace npu;
  using namespace nb::literals;
  m.doc() = "The openTPU machine in C++; use npuserve.sim.native.";
  nb::set_leak_warnings(false);  // a server may exit with its machine alive
  nb::exception<Fault>(m, "Fault");
  m.def("kernel_sets", &kernel_sets);
  nb::class_<PythonMachine>(m, "Machine")
      .def("__init__", &construct, nb::kw_only(), "depth"_a, "mcols"_a, "act_rows"_a, "act_blocks"_a, "tmem_words"_a,
           "imem_instructions"_a, "dram_bytes"_a, "num_threads"_a, "shadow_limit_bytes"_a, "kernels"_a,
           "dstep"_a = true)
      .def("load", &load, "program"_a)
      .def("load_from_dram", [](PythonMachine& self, uint64_t address, uint64_t count) {
             PythonMachine::Use(self)->load_from_dram(address, count);
           }, "address"_a, "num_instructions"_a)
      .def("run", &run, "arguments"_a, "max_instructions"_a)
      .def("read_dram", &read_dram, "address"_a, "size"_a)
      .def("write_dram", &write_dram, "address"_a, "data"_a)
      .def("write_block", &write_block, "address"_a, "end"_a, "group_stride"_a, "row_stride"_a, "data"_a)
      .def("dram_view", &dram_view, "address"_a, "size"_a)
      .def("expect", &expect, "address"_a, "size"_a)
      .def("map_image", &map_image, "path"_a, "file_offset"_a, "size"_a, "address"_a)
      .def("read_tmem", &read_tmem, "address"_a, "size"_a)
      .def("write_tmem", &write_tmem, "address"_a, "data"_a)
      .def("read_act", &read_act)
      .def("write_act", &write_act, "data"_a, "scales"_a)
      .def("registers", [](PythonMachine& self) { return PythonMachine::Use(self)->registers(); })
      .def("prepare", &prepare, "data"_a, "stride"_a, "scales"_a, "scale_stride"_a, "num_rows"_a, "num_blocks"_a,
           "unit"_a)
      .def("set_profiling", [](PythonMachine& self, bool on) { PythonMachine::Use(self)->set_profiling(on); }, "on"_a)
      .def("profile", &profile)
      .def("fault_place", [](PythonMachine& self) {
        const PythonMachine::Use use(self);
        return std::pair(use->fault_place().pc, use->fault_place().words);
      })
      .def_prop_ro("retired", [](PythonMachine& self) { return PythonMachine::Use(self)->retired(); })
      .def_prop_ro("num_threads", [](PythonMachine& self) { return self.machine.num_threads(); })
      .def_prop_ro("kernels", [](PythonMachine& self) { return self.machine.kernels().name; })
      .def_prop_ro("packed_bytes", [](PythonMachine& self) { return PythonMachine::Use(self)->packed_bytes(); });
}
