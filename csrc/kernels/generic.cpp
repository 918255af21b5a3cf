// The kernel set "generic"; CMakeLists.txt gives this file the compiler flags of its instruction set.
#include "dot_portable.h"
#include "table.h"

namespace npu {

extern const Kernels kGenericKernels = NPU_KERNEL_TABLE("generic", PortableDot);

}  // namespace npu
