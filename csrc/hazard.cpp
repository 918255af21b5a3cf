// The hazard rule of VOP: reading at element p what an earlier element wrote is an error.
//
// Closed forms settle nearly all programs; the rest is walked element by element, once: what decides is in the
// instruction and in the distances of its operands, and these are remembered with the instruction.
#include <algorithm>

#include "fault.h"
#include "machine.h"

namespace npu {

Machine::Order Machine::quick_order(const Footprint& f, const Operand& read) {
  const uint64_t read_width = read.per_column ? f.cols : 1;
  const uint64_t read_end = read.base + (f.rows - 1) * read.row_stride + read_width;
  const uint64_t write_end = f.dst + (f.rows - 1) * f.dst_stride + f.width;
  if (read_end <= f.dst || write_end <= read.base) return kIndependent;
  const bool one_row = f.rows == 1;
  const bool same_stride = one_row || read.row_stride == f.dst_stride;
  if (!f.reduction && f.dst == read.base && same_stride && (read.per_column || f.cols == 1) &&
      (one_row || f.dst_stride >= f.cols)) {
    return kIndependent;
  }
  // Interleaved: with one stride, the columns that are written and read never meet.
  const uint64_t stride = f.dst_stride;
  if (!one_row && same_stride && stride > 0) {
    const uint64_t apart = (read.base % stride + stride - f.dst % stride) % stride;
    if (apart >= f.width && apart + read_width <= stride) return kIndependent;
  }
  // Whatever a row writes lies below what later rows read.
  const bool before_next_row =
      one_row || (f.dst_stride <= read.row_stride && f.dst + f.width - 1 < read.base + read.row_stride);
  if (f.reduction && before_next_row) return kSequential;
  if (!f.reduction && read.per_column && f.dst <= read.base && before_next_row) return kSequential;
  return kUnknown;
}

Machine::Order Machine::element_order(Instruction& in, const Footprint& f) {
  const uint32_t to_a = f.a ? static_cast<uint32_t>(f.a->base - f.dst) : 0;
  const uint32_t to_b = f.b ? static_cast<uint32_t>(f.b->base - f.dst) : 0;
  if (in.checked_order != kUnknown && in.checked_a == to_a && in.checked_b == to_b) {
    return static_cast<Order>(in.checked_order);
  }
  const Order with_a = f.a ? quick_order(f, *f.a) : kIndependent;
  const Order with_b = f.b ? quick_order(f, *f.b) : kIndependent;
  Order order = kIndependent;
  if (with_a == kUnknown || with_b == kUnknown) check_hazard(f);
  const bool rows_overlap = f.rows > 1 && f.dst_stride < f.width;
  if (with_a != kIndependent || with_b != kIndependent || rows_overlap) order = kSequential;
  in.checked_order = order;
  in.checked_a = to_a;
  in.checked_b = to_b;
  return order;
}

void Machine::check_hazard(const Footprint& f) {
  uint32_t* written = written_.as<uint32_t>();
  if (++hazard_stamp_ == 0) {
    std::fill_n(written, config_.tmem_words, 0u);
    hazard_stamp_ = 1;
  }
  const auto read = [&](const Operand* operand, uint64_t r, uint64_t c) {
    if (!operand) return;
    const uint64_t word = operand->base + r * operand->row_stride + (operand->per_column ? c : 0);
    if (written[word] == hazard_stamp_) {
      fault("VOP hazard: row %llu, column %llu reads TMEM word %llu, which an earlier element wrote",
            static_cast<unsigned long long>(r), static_cast<unsigned long long>(c),
            static_cast<unsigned long long>(word));
    }
  };
  for (uint64_t r = 0; r < f.rows; ++r) {
    for (uint64_t c = 0; c < f.cols; ++c) {
      read(f.a, r, c);
      read(f.b, r, c);
      if (!f.reduction) written[f.dst + r * f.dst_stride + c] = hazard_stamp_;
    }
    for (uint64_t i = 0; f.reduction && i < f.width; ++i) written[f.dst + r * f.dst_stride + i] = hazard_stamp_;
  }
}

}  // namespace npu
