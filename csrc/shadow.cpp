#include "shadow.h"

#include <algorithm>
#include <cstring>

namespace npu {
namespace {

constexpr size_t kMaxMatrices = size_t{1} << 17;
constexpr uint64_t kPage = 4096;
// What is packed of a tracked matrix, at most; and 4-byte pieces that are put into the copy rather than packing anew.
constexpr uint64_t kMaxTrackedBytes = 256 << 10;
constexpr uint64_t kMaxPatches = 160;

uint64_t data_end(const MatrixKey& key, uint64_t depth) {
  return key.data + uint64_t{key.num_rows - 1} * key.stride + key.row_bytes(depth);
}

uint64_t scales_end(const MatrixKey& key) {
  return key.scales + uint64_t{key.num_rows - 1} * key.scale_stride + key.scale_row_bytes();
}

bool unchanged(const MatrixKey& key, const Dram& dram, uint64_t depth, uint32_t time) {
  return dram.rows_unchanged_since(time, key.data, key.stride, key.num_rows, key.row_bytes(depth)) &&
         (key.unit ||
          dram.rows_unchanged_since(time, key.scales, key.scale_stride, key.num_rows, key.scale_row_bytes()));
}

// Where block k of row n begins in the packed form, less the row's place among its group's lanes.
uint8_t* packed_block(const Matrix& matrix, uint64_t row, uint64_t block) {
  return matrix.packed + static_cast<int64_t>(row / kGroup) * matrix.layout.group_bytes() +
         static_cast<int64_t>(block) * matrix.layout.block_bytes();
}

}  // namespace

ShadowStore::ShadowStore(size_t limit_bytes, uint64_t dram_bytes, uint64_t depth)
    : limit_(limit_bytes), depth_(depth), page_lists_((dram_bytes / kPage + 1) * sizeof(uint32_t)), lists_(1) {}

ShadowStore::Use ShadowStore::use(const MatrixKey& key, const Dram& dram, uint64_t run, bool prepare) {
  if (era_ != dram.era() || matrices_.size() >= kMaxMatrices) {
    clear();
    era_ = dram.era();
  }
  const auto [place, is_new] = matrices_.try_emplace(key);
  Matrix& matrix = place->second;
  matrix.key = key;
  matrix.last_run = run;
  if (matrix.tracked) return {matrix, matrix.stale ? kPackNow : kUsePacked};
  const bool same = !is_new && unchanged(key, dram, depth_, matrix.checked_at);
  matrix.checked_at = dram.clock();
  if (matrix.packed && same) return {matrix, kUsePacked};
  if (matrix.packed) release(matrix);
  const bool again = prepare || (!is_new && (same || trackable(key)));
  return {matrix, again ? kPackNow : kUseOnce};
}

uint8_t* ShadowStore::allocate(Matrix& matrix, const PackLayout& layout, uint64_t run) {
  const int64_t num_groups = (int64_t{matrix.key.num_rows} + kGroup - 1) / kGroup;
  const size_t size = static_cast<size_t>(num_groups * layout.group_bytes());
  matrix.layout = layout;
  if (matrix.packed && matrix.packed_bytes == size) {
    matrix.stale = false;
    return matrix.packed;
  }
  if (matrix.packed) release(matrix);
  while (!arena_.fits_in(size, limit_)) {
    if (!evict_oldest(run)) return nullptr;
  }
  matrix.packed = arena_.allocate(size);
  matrix.packed_bytes = size;
  packed_ += size;
  if (trackable(matrix.key)) track(matrix);
  return matrix.packed;
}

bool ShadowStore::evict_oldest(uint64_t run) {
  Matrix* oldest = nullptr;
  for (auto& [key, matrix] : matrices_) {
    if (matrix.packed && (!oldest || matrix.last_run < oldest->last_run)) oldest = &matrix;
  }
  // What the last runs used will be used again; evicting it would only move the packing around.
  if (!oldest || oldest->last_run + 2 >= run) return false;
  release(*oldest);
  return true;
}

void ShadowStore::release(Matrix& matrix) {
  if (matrix.tracked) untrack(matrix);
  arena_.release(matrix.packed, matrix.packed_bytes);
  packed_ -= matrix.packed_bytes;
  matrix.packed = nullptr;
  matrix.packed_bytes = 0;
}

void ShadowStore::clear() {
  for (auto& [key, matrix] : matrices_) {
    if (matrix.tracked) untrack(matrix);
  }
  matrices_.clear();
  arena_.clear();
  packed_ = 0;
}

// Rows that overlap each other have no single place in the packed form; only int8 is ever written by programs.
bool ShadowStore::trackable(const MatrixKey& key) const {
  const uint64_t row_bytes = key.row_bytes(depth_);
  const bool scales_apart = key.scale_stride >= key.num_blocks * 4 && key.scale_stride % 4 == 0;
  return key.format == kInt8 && key.stride >= row_bytes && (key.unit || scales_apart) &&
         key.num_rows * row_bytes <= kMaxTrackedBytes;
}

template <class Visit>
void ShadowStore::for_each_page(const Matrix& matrix, Visit visit) {
  const MatrixKey& key = matrix.key;
  const auto visit_rows = [&](uint64_t begin, uint64_t stride, uint64_t row_bytes) {
    uint64_t next = 0;  // pages below were visited
    for (uint64_t n = 0; n < key.num_rows; ++n) {
      const uint64_t row = begin + n * stride;
      for (uint64_t page = std::max(next, row / kPage); page <= (row + row_bytes - 1) / kPage; ++page) visit(page);
      next = (row + row_bytes - 1) / kPage + 1;
    }
  };
  visit_rows(key.data, key.stride, key.num_blocks * depth_);
  if (!key.unit) visit_rows(key.scales, key.scale_stride, uint64_t{key.num_blocks} * 4);
}

void ShadowStore::track(Matrix& matrix) {
  uint32_t* page_lists = page_lists_.as<uint32_t>();
  for_each_page(matrix, [&](uint64_t page) {
    if (page_lists[page] == 0) {
      page_lists[page] = static_cast<uint32_t>(lists_.size());
      lists_.emplace_back();
    }
    std::vector<Matrix*>& list = lists_[page_lists[page]];
    if (list.empty() || list.back() != &matrix) list.push_back(&matrix);
  });
  matrix.tracked = true;
  matrix.stale = false;
}

void ShadowStore::untrack(Matrix& matrix) {
  for_each_page(matrix, [&](uint64_t page) { std::erase(lists_[page_lists_.as<uint32_t>()[page]], &matrix); });
  matrix.tracked = matrix.stale = false;
}

void ShadowStore::written(const WrittenRows& rows, const Dram& dram) {
  if (lists_.size() == 1) return;
  const uint32_t* page_lists = page_lists_.as<uint32_t>();
  ++write_number_;
  uint64_t last_page = UINT64_MAX;
  for (uint64_t r = 0; r < rows.num_rows; ++r) {
    const uint64_t begin = rows.begin + r * rows.stride;
    for (uint64_t page = begin / kPage; page <= (begin + rows.row_bytes - 1) / kPage; ++page) {
      if (page == last_page) continue;
      last_page = page;
      for (Matrix* matrix : lists_[page_lists[page]]) {
        if (matrix->last_write == write_number_) continue;
        matrix->last_write = write_number_;
        if (!matrix->stale) apply(rows, dram, *matrix);
      }
    }
  }
}

void ShadowStore::apply(const WrittenRows& rows, const Dram& dram, Matrix& matrix) const {
  const MatrixKey& key = matrix.key;
  if (rows.begin < data_end(key, depth_) && key.data < rows.end()) apply_data(rows, dram, matrix);
  if (!key.unit && rows.begin < scales_end(key) && key.scales < rows.end()) apply_scales(rows, dram, matrix);
}

void ShadowStore::apply_data(const WrittenRows& rows, const Dram& dram, Matrix& matrix) const {
  const MatrixKey& key = matrix.key;
  const int64_t stride = key.stride;
  const int64_t offset = static_cast<int64_t>(rows.begin) - static_cast<int64_t>(key.data);
  const int64_t first_row = offset >= 0 ? offset / stride : -((-offset + stride - 1) / stride);
  const int64_t first_column = offset - first_row * stride;
  const bool aligned = rows.num_rows == 1 || rows.stride == key.stride;
  if (!aligned || first_column + static_cast<int64_t>(rows.row_bytes) > stride) {
    matrix.stale = true;
    return;
  }
  const int64_t width = static_cast<int64_t>(key.num_blocks * depth_);
  const int64_t end_column = std::min(width, first_column + static_cast<int64_t>(rows.row_bytes));
  const int64_t begin_row = std::max<int64_t>(0, first_row);
  const int64_t end_row = std::min<int64_t>(key.num_rows, first_row + static_cast<int64_t>(rows.num_rows));
  if (first_column >= width || begin_row >= end_row) return;
  const int64_t begin_quad = first_column / 4;
  const int64_t end_quad = (end_column + 3) / 4;
  if (static_cast<uint64_t>((end_row - begin_row) * (end_quad - begin_quad)) > kMaxPatches) {
    matrix.stale = true;
    return;
  }
  const int64_t depth = static_cast<int64_t>(depth_);
  const int64_t group_bytes = matrix.layout.group_bytes();
  const int64_t kept = (int64_t{key.num_blocks} - 1) * depth + matrix.layout.last_columns;
  for (int64_t column = begin_quad * 4; column < end_column; column += 4) {
    const uint8_t* source = dram.data() + key.data + column;
    uint8_t* block = matrix.packed + column / depth * matrix.layout.block_bytes();
    uint8_t* target = block + kScaleBytes + column % depth * kGroup;
    for (int64_t n = begin_row; n < end_row; ++n) {
      uint32_t quad;
      std::memcpy(&quad, source + n * stride, sizeof quad);
      if (column >= kept) {
        if (quad == 0) continue;
        matrix.stale = true;
        return;
      }
      quad ^= 0x80808080;
      std::memcpy(target + n / kGroup * group_bytes + n % kGroup * 4, &quad, sizeof quad);
    }
  }
}

void ShadowStore::apply_scales(const WrittenRows& rows, const Dram& dram, Matrix& matrix) const {
  const MatrixKey& key = matrix.key;
  if (rows.num_rows > 1) {
    matrix.stale = true;
    return;
  }
  const uint64_t begin = std::max<uint64_t>(rows.begin, key.scales) / 4 * 4;
  const uint64_t end = std::min(rows.end(), scales_end(key));
  if (end - begin > kMaxPatches * 4) {
    matrix.stale = true;
    return;
  }
  for (uint64_t address = begin; address < end; address += 4) {
    const uint64_t offset = address - key.scales;
    const uint64_t n = key.num_rows == 1 ? 0 : offset / key.scale_stride;
    const uint64_t k = (offset - n * key.scale_stride) / 4;
    if (k < key.num_blocks) std::memcpy(packed_block(matrix, n, k) + n % kGroup * 4, dram.data() + address, 4);
  }
}

}  // namespace npu
