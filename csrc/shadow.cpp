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
    : limit_(limit_bytes), depth_(depth), page_sets_((dram_bytes / kPage + 1) * sizeof(uint32_t)), sets_(1) {}

ShadowStore::Use ShadowStore::use(const MatrixKey& key, const Dram& dram, uint64_t run, bool prepare,
                                  const KnownMatrix& guess) {
  if (era_ != dram.era() || matrices_.size() >= kMaxMatrices) {
    clear();
    era_ = dram.era();
  }
  const bool guessed = guess.matrix && guess.generation == generation_ && guess.matrix->key == key;
  bool is_new = false;
  Matrix* found = guess.matrix;
  if (!guessed) {
    const auto place = matrices_.try_emplace(key);
    found = &place.first->second;
    is_new = place.second;
  }
  Matrix& matrix = *found;
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
  ++generation_;
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

template <class Change>
void ShadowStore::move_pages(const Matrix& matrix, Change change) {
  uint32_t* page_sets = page_sets_.as<uint32_t>();
  std::vector<std::pair<uint32_t, uint32_t>> moves;  // few: neighbours share their sets
  for_each_page(matrix, [&](uint64_t page) {
    const uint32_t from = page_sets[page];
    auto move = std::find_if(moves.begin(), moves.end(), [&](const auto& known) { return known.first == from; });
    if (move == moves.end()) move = moves.insert(move, {from, change(from)});
    if (move->second == from) return;
    page_sets[page] = move->second;
    ++sets_[move->second].num_pages;
    if (from != 0 && --sets_[from].num_pages == 0) {
      sets_[from].matrices.clear();
      free_sets_.push_back(from);
      moves.erase(move);  // the number may come back as another set
    }
  });
}

uint32_t ShadowStore::new_set(std::vector<Matrix*> matrices) {
  if (matrices.empty()) return 0;
  if (free_sets_.empty()) {
    sets_.emplace_back();
    free_sets_.push_back(static_cast<uint32_t>(sets_.size() - 1));
  }
  const uint32_t number = free_sets_.back();
  free_sets_.pop_back();
  sets_[number].matrices = std::move(matrices);
  return number;
}

void ShadowStore::track(Matrix& matrix) {
  move_pages(matrix, [&](uint32_t from) {
    std::vector<Matrix*> matrices = sets_[from].matrices;
    // Scales may share a page with the data.
    if (!matrices.empty() && matrices.back() == &matrix) return from;
    matrices.push_back(&matrix);
    return new_set(std::move(matrices));
  });
  matrix.tracked = true;
  matrix.stale = false;
}

void ShadowStore::untrack(Matrix& matrix) {
  move_pages(matrix, [&](uint32_t from) {
    std::vector<Matrix*> matrices = sets_[from].matrices;
    if (std::erase(matrices, &matrix) == 0) return from;
    return new_set(std::move(matrices));
  });
  matrix.tracked = matrix.stale = false;
}

void ShadowStore::written(const WrittenRows& rows, const Dram& dram, Lines* lookups) {
  if (sets_.size() == 1) return;
  const uint32_t* page_sets = page_sets_.as<uint32_t>();
  ++write_number_;
  uint32_t last_set = 0;
  for (uint64_t r = 0; r < rows.num_rows; ++r) {
    const uint64_t begin = rows.begin + r * rows.stride;
    for (uint64_t page = begin / kPage; page <= (begin + rows.row_bytes - 1) / kPage; ++page) {
      if (page_sets[page] == last_set) continue;
      last_set = page_sets[page];
      if (lookups) {
        lookups->add(&page_sets[page]);
        lookups->add(&sets_[last_set]);
        lookups->add(sets_[last_set].matrices.data());
      }
      for (Matrix* matrix : sets_[last_set].matrices) {
        if (matrix->last_write == write_number_) continue;
        matrix->last_write = write_number_;
        if (lookups) lookups->add(matrix);
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
  const int64_t begin_column = std::max<int64_t>(0, first_column);
  const bool one_column = end_column - begin_column == 1;
  const int64_t num_pieces = one_column ? 1 : (end_column + 3) / 4 - begin_column / 4;
  if (static_cast<uint64_t>((end_row - begin_row) * num_pieces) > kMaxPatches) {
    matrix.stale = true;
    return;
  }
  if (one_column) {
    patch<uint8_t>(dram, matrix, begin_column, begin_row, end_row);
    return;
  }
  for (int64_t column = begin_column / 4 * 4; column < end_column; column += 4) {
    if (!patch<uint32_t>(dram, matrix, column, begin_row, end_row)) return;
  }
}

// Puts the columns of a Piece into the copy: a byte as such, as its neighbours would have to wait until it is stored.
// False when they have no room there.
template <class Piece>
bool ShadowStore::patch(const Dram& dram, Matrix& matrix, int64_t column, int64_t begin_row, int64_t end_row) const {
  const MatrixKey& key = matrix.key;
  const int64_t depth = static_cast<int64_t>(depth_);
  const int64_t stride = key.stride;
  const uint8_t* source = dram.data() + key.data + column;
  if (const int64_t last = column - (int64_t{key.num_blocks} - 1) * depth; last >= matrix.layout.last_columns) {
    bool is_zero = true;
    for (int64_t n = begin_row; n < end_row; ++n) {
      Piece piece;
      std::memcpy(&piece, source + n * stride, sizeof piece);
      is_zero &= piece == 0;
    }
    if (is_zero) return true;
    if (last >= matrix.layout.stored_columns) {
      matrix.stale = matrix.grows = true;
      return false;
    }
    matrix.layout.last_columns = (last / kColumnStep + 1) * kColumnStep;
  }
  const int64_t group_bytes = matrix.layout.group_bytes();
  uint8_t* block = matrix.packed + column / depth * matrix.layout.block_bytes();
  uint8_t* target = block + kScaleBytes + column % depth / 4 * 4 * kGroup + column % 4;
  for (int64_t n = begin_row; n < end_row; ++n) {
    Piece piece;
    std::memcpy(&piece, source + n * stride, sizeof piece);
    piece ^= static_cast<Piece>(0x80808080);
    std::memcpy(target + n / kGroup * group_bytes + n % kGroup * 4, &piece, sizeof piece);
  }
  return true;
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
