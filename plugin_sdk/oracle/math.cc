#include "plugin_sdk/oracle/math.h"

#include <cstdio>
#include <cstdlib>

namespace rt::oracle {

void CheckSize(const char* tensor, std::size_t found, int64_t expected) {
  if (expected >= 0 && found == static_cast<std::size_t>(expected)) return;
  std::fprintf(stderr, "oracle: %s: expected %lld elements, got %zu\n", tensor,
               static_cast<long long>(expected), found);
  std::abort();
}

}  // namespace rt::oracle
