#include "dram.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>

#include "fault.h"

namespace npu {
namespace {

constexpr uint64_t kPage = 4096;
constexpr int kFineShift = 12;  // a page
constexpr int kCoarseShift = 20;

struct File {
  explicit File(const std::string& path) : descriptor(open(path.c_str(), O_RDONLY | O_CLOEXEC)) {
    if (descriptor < 0) throw std::system_error(errno, std::generic_category(), path);
  }
  ~File() { close(descriptor); }
  File(const File&) = delete;
  File& operator=(const File&) = delete;
  int descriptor;
};

void read_fully(const File& file, const std::string& path, uint64_t offset, uint64_t size, uint8_t* out) {
  while (size > 0) {
    const ssize_t got = pread(file.descriptor, out, size, static_cast<off_t>(offset));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) throw std::system_error(got < 0 ? errno : EIO, std::generic_category(), path);
    out += got;
    offset += static_cast<uint64_t>(got);
    size -= static_cast<uint64_t>(got);
  }
}

bool all_at_most(const uint32_t* stamps, uint64_t begin, uint64_t end, uint32_t time) {
  uint32_t latest = 0;
  for (uint64_t i = begin; i < end; ++i) latest = std::max(latest, stamps[i]);
  return latest <= time;
}

}  // namespace

Dram::Dram(uint64_t size_bytes)
    : size_(size_bytes),
      memory_(std::make_shared<Mapping>(size_bytes, true)),
      data_(memory_->data()),
      fine_(((size_bytes >> kFineShift) + 1) * sizeof(uint32_t)),
      coarse_(((size_bytes >> kCoarseShift) + 1) * sizeof(uint32_t)),
      file_backed_(size_bytes / kPage + 1) {}

void Dram::check(uint64_t address, uint64_t size, const char* what) const {
  if (address + size > size_) {
    fault("%s: DRAM bytes %llu to %llu are outside the memory of %llu bytes", what,
          static_cast<unsigned long long>(address), static_cast<unsigned long long>(address + size - 1),
          static_cast<unsigned long long>(size_));
  }
}

void Dram::check_words(uint64_t address, uint64_t num_words, const char* what) const {
  if (address % 4 != 0) {
    fault("%s: DRAM word address %llu is not a multiple of 4", what, static_cast<unsigned long long>(address));
  }
  check(address, num_words * 4, what);
}

void Dram::tick() {
  if (++clock_ != 0) return;
  madvise(fine_.data(), fine_.size(), MADV_DONTNEED);
  madvise(coarse_.data(), coarse_.size(), MADV_DONTNEED);
  clock_ = 1;
  ++era_;
}

void Dram::stamp(uint64_t begin, uint64_t end) {
  uint32_t* fine = fine_.as<uint32_t>();
  uint32_t* coarse = coarse_.as<uint32_t>();
  for (uint64_t i = begin >> kFineShift; i <= (end - 1) >> kFineShift; ++i) fine[i] = clock_;
  for (uint64_t i = begin >> kCoarseShift; i <= (end - 1) >> kCoarseShift; ++i) coarse[i] = clock_;
  if (!any_file_) return;
  for (uint64_t i = begin / kPage; i <= (end - 1) / kPage; ++i) file_backed_.data()[i] = 0;
}

void Dram::stamp_rows(uint64_t begin, uint64_t stride, uint64_t num_rows, uint64_t row_bytes) {
  // Rows so close that no page lies between them are stamped as one.
  if (stride <= row_bytes + kPage || num_rows == 1) return stamp(begin, begin + (num_rows - 1) * stride + row_bytes);
  for (uint64_t r = 0; r < num_rows; ++r) stamp(begin + r * stride, begin + r * stride + row_bytes);
}

bool Dram::unchanged_since(uint32_t time, uint64_t begin, uint64_t end) const {
  const uint32_t* coarse = coarse_.as<uint32_t>();
  const uint32_t* fine = fine_.as<uint32_t>();
  for (uint64_t i = begin >> kCoarseShift; i <= (end - 1) >> kCoarseShift; ++i) {
    if (coarse[i] <= time) continue;
    const uint64_t from = std::max(begin, i << kCoarseShift);
    const uint64_t to = std::min(end, (i + 1) << kCoarseShift);
    if (!all_at_most(fine, from >> kFineShift, ((to - 1) >> kFineShift) + 1, time)) return false;
  }
  return true;
}

bool Dram::rows_unchanged_since(uint32_t time, uint64_t begin, uint64_t stride, uint64_t num_rows,
                                uint64_t row_bytes) const {
  const uint64_t end = begin + (num_rows - 1) * stride + row_bytes;
  const uint32_t* coarse = coarse_.as<uint32_t>();
  if (all_at_most(coarse, begin >> kCoarseShift, ((end - 1) >> kCoarseShift) + 1, time)) return true;
  if (stride <= row_bytes) return unchanged_since(time, begin, end);
  for (uint64_t r = 0; r < num_rows; ++r) {
    const uint64_t row = begin + r * stride;
    if (!unchanged_since(time, row, row + row_bytes)) return false;
  }
  return true;
}

void Dram::map_file(const std::string& path, uint64_t offset, uint64_t size, uint64_t address) {
  if (offset % kPage != 0 || address % kPage != 0) {
    throw std::invalid_argument("file offset and DRAM address of a mapped image must be multiples of 4096");
  }
  if (size == 0 || address + size > size_) throw std::invalid_argument("the image does not fit the DRAM");
  const File file(path);
  struct stat status;
  if (fstat(file.descriptor, &status) != 0) throw std::system_error(errno, std::generic_category(), path);
  if (offset + size > static_cast<uint64_t>(status.st_size)) {
    throw std::invalid_argument(path + " is shorter than the part of it that is to be mapped");
  }
  tick();
  stamp(address, address + size);
  const uint64_t whole = size / kPage * kPage;
  if (whole > 0) {
    void* mapped = mmap(data() + address, whole, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                        file.descriptor, static_cast<off_t>(offset));
    if (mapped == MAP_FAILED) throw std::system_error(errno, std::generic_category(), path);
    any_file_ = true;
    std::fill_n(file_backed_.data() + address / kPage, whole / kPage, static_cast<uint8_t>(1));
  }
  read_fully(file, path, offset + whole, size - whole, data() + address + whole);
}

void Dram::drop_clean_pages(uint64_t begin, uint64_t end) {
  const uint8_t* backed = file_backed_.data();
  // DONTNEED would also discard a written private page, so a run of pages ends where one is not known to be clean.
  uint64_t page = (begin + kPage - 1) / kPage;
  const uint64_t last = end / kPage;
  while (page < last) {
    uint64_t stop = page;
    while (stop < last && backed[stop] == 1) ++stop;
    if (stop > page) madvise(data() + page * kPage, (stop - page) * kPage, MADV_DONTNEED);
    page = stop + 1;
  }
}

}  // namespace npu
