#include "fault.h"

#include <cstdio>

namespace npu {

void fault(const char* format, ...) {
  char text[256];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  throw Fault(text);
}

}  // namespace npu
