// Any bytes as the files of a checkpoint folder (separated by byte 0): an error or a config, never a fault.
#include "runtime/text/text_config.h"

#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <string_view>

namespace {

std::filesystem::path MakeFolder() {
  std::string pattern = (std::filesystem::temp_directory_path() / "rt_text_config_fuzz_XXXXXX").string();
  if (mkdtemp(pattern.data()) == nullptr) std::abort();
  return pattern;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::filesystem::path folder = MakeFolder();
  std::string_view rest(reinterpret_cast<const char*>(data), size);
  for (const char* name : {"tokenizer_config.json", "generation_config.json", "config.json", "special_tokens_map.json",
                           "chat_template.jinja"}) {
    const size_t end = std::min(rest.find('\0'), rest.size());
    std::ofstream(folder / name, std::ios::binary) << rest.substr(0, end);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  (void)rt::TextConfig::Load(folder, nullptr);
  return 0;
}
