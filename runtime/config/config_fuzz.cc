// libFuzzer target of the configuration reader: any text gives a Config or an error, never a crash, hang or
// leak.
#include "runtime/config/config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const rt::Result<rt::Config> config = rt::Config::Parse(text, "fuzz", "/", {});
  if (config.ok()) (void)config->Explain();
  (void)rt::Config::Parse("", "fuzz", "/", {std::string(text)});
  return 0;
}
