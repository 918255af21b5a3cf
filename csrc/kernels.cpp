#include "kernels.h"

namespace npu {
namespace {

bool runs_here(const Kernels& kernels) {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (&kernels == &kAvx2Kernels) return __builtin_cpu_supports("avx2");
  if (&kernels == &kAvx512Kernels) {
    return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
  }
#endif
  return &kernels == &kGenericKernels;
}

}  // namespace

int usable_kernels(const Kernels* (&sets)[kMaxKernelSets]) {
  const Kernels* const all[] = {
#if defined(__x86_64__)
      &kAvx512Kernels, &kAvx2Kernels,
#endif
      &kGenericKernels,
  };
  int count = 0;
  for (const Kernels* set : all) {
    if (runs_here(*set)) sets[count++] = set;
  }
  return count;
}

}  // namespace npu
