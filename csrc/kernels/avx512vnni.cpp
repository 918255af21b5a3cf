// The kernel set "avx512vnni"; CMakeLists.txt gives this file the compiler flags of its instruction set.
#include "dot_avx512.h"
#include "table.h"

namespace npu {

extern const Kernels kAvx512Kernels = NPU_KERNEL_TABLE("avx512vnni", VnniDot);

}  // namespace npu
