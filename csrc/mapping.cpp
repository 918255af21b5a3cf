#include "mapping.h"

#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <new>
#include <system_error>
#include <thread>
#include <utility>

namespace npu {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;
constexpr size_t kPage = 4096;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, which older headers lack
constexpr int kLowPriority = 10;

void populate(uint8_t* begin, size_t size) {
  uint8_t* const end = begin + size;
  begin -= reinterpret_cast<uintptr_t>(begin) % kPage;
  // A piece at a time, so that faults of others come between.
  while (begin < end) {
    const size_t piece = std::min(kHugePage, static_cast<size_t>(end - begin));
    if (madvise(begin, piece, kPopulateWrite) != 0) return;
    begin += piece;
  }
}

}  // namespace

Mapping::Mapping(size_t size_bytes, bool huge_pages) : size_(size_bytes) {
  const size_t alignment = huge_pages ? kHugePage : 0;
  reserved_ = size_bytes + alignment + 4096;
  void* memory = mmap(nullptr, reserved_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  base_ = static_cast<uint8_t*>(memory);
  data_ = base_;
  if (huge_pages) {
    data_ += (kHugePage - reinterpret_cast<uintptr_t>(base_) % kHugePage) % kHugePage;
    madvise(data_, size_, MADV_HUGEPAGE);  // advice: without huge pages it is only slower
  }
}

Mapping::~Mapping() { munmap(base_, reserved_); }

void populate_beside(std::shared_ptr<Mapping> mapping, size_t offset, size_t size) {
  try {
    std::thread([mapping = std::move(mapping), offset, size] {
      setpriority(PRIO_PROCESS, static_cast<id_t>(syscall(SYS_gettid)), kLowPriority);
      populate(mapping->data() + offset, size);
    }).detach();
  } catch (const std::system_error&) {
    // Then its first use costs what it costs.
  }
}

}  // namespace npu
