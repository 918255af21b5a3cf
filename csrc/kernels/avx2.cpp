// The kernel set "avx2"; CMakeLists.txt gives this file the compiler flags of its instruction set.
#include "dot_portable.h"
#include "table.h"

namespace npu {

extern const Kernels kAvx2Kernels = NPU_KERNEL_TABLE("avx2", PortableDot);

}  // namespace npu
