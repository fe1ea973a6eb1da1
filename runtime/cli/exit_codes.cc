#include "runtime/cli/exit_codes.h"

#include <cstdio>
#include <string>

namespace rt {

ExitCode Fail(ExitCode code, const Status& status) {
  const std::string& message = status.message();
  size_t start = 0;
  do {
    const size_t end = std::min(message.find('\n', start), message.size());
    std::fprintf(stderr, "runtime: %.*s\n", static_cast<int>(end - start), message.data() + start);
    start = end + 1;
  } while (start <= message.size());
  return status.code() == Code::kUnavailable ? ExitCode::kUnavailable : code;
}

}  // namespace rt
