#include "runtime/text/pre_tokenizer.h"

#include <nlohmann/json.hpp>
#include <string>
#include <type_traits>

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace rt {
namespace {

using Json = nlohmann::json;

// The expression that ByteLevel applies with use_regex. Source: Radford et al. 2019, encoder.py.
constexpr char kGpt2Pattern[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// Unicode White_Space as a class body. PCRE2's own \s also takes U+180E, which left White_Space in Unicode 6.3.
constexpr char kSpaceClass[] =
    R"(\x{09}-\x{0D}\x{20}\x{85}\x{A0}\x{1680}\x{2000}-\x{200A}\x{2028}\x{2029}\x{202F}\x{205F}\x{3000})";

// Rewrites \s, and \S outside of classes, to Unicode White_Space.
std::string WithUnicodeSpace(std::string_view pattern) {
  std::string out;
  bool in_class = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (c == '\\' && i + 1 < pattern.size()) {
      const char escaped = pattern[++i];
      if (escaped == 's') {
        out.append(in_class ? "" : "[").append(kSpaceClass).append(in_class ? "" : "]");
      } else if (escaped == 'S' && !in_class) {
        out.append("[^").append(kSpaceClass).append("]");
      } else {
        out += {c, escaped};
      }
      continue;
    }
    if (c == '[' && !in_class) {
      in_class = true;
    } else if (c == ']') {
      in_class = false;
    }
    out += c;
  }
  return out;
}

struct FreeCode {
  void operator()(pcre2_code* p) const { pcre2_code_free(p); }
};
using CodePtr = std::unique_ptr<pcre2_code, FreeCode>;

// Steps of backtracking for one match. Linear patterns need a few per byte; only a runaway one comes here.
constexpr uint32_t kMatchLimit = 200'000'000;

std::string Quote(std::string_view text) { return std::string(1, '"').append(text).append(1, '"'); }

}  // namespace

struct PreTokenizer::Step {
  CodePtr code;
  bool jit = false;
  bool keep_matches = true;
  bool keep_gaps = true;

  int Match(const unsigned char* subject, size_t size, size_t start, pcre2_match_data* data,
            pcre2_match_context* context) const;
};

struct PreTokenizer::Scratch::Impl {
  pcre2_match_context* context = pcre2_match_context_create(nullptr);
  // Grows on demand up to 8 MiB: a long run that has to be given back (\s+(?!\S)) keeps its way on this stack.
  pcre2_jit_stack* stack = pcre2_jit_stack_create(32 * 1024, 8 * 1024 * 1024, nullptr);
  // One per nesting level of steps, because an outer step's offsets are still in use while an inner one matches.
  std::vector<pcre2_match_data*> data;

  Impl() {
    pcre2_jit_stack_assign(context, nullptr, stack);
    pcre2_set_match_limit(context, kMatchLimit);
  }
  ~Impl() {
    for (pcre2_match_data* d : data) pcre2_match_data_free(d);
    pcre2_jit_stack_free(stack);
    pcre2_match_context_free(context);
  }
  pcre2_match_data* Data(size_t step) {
    while (data.size() <= step) data.push_back(pcre2_match_data_create(1, nullptr));
    return data[step];
  }
};

int PreTokenizer::Step::Match(const unsigned char* subject, size_t size, size_t start, pcre2_match_data* data,
                              pcre2_match_context* context) const {
  // The whole text was validated once: without NO_UTF_CHECK each match would check the rest again (quadratic).
  // pcre2_jit_match leaves out the checks of arguments, which cost as much as the match of a short word.
  if (jit) {
    const int rc = pcre2_jit_match(code.get(), subject, size, start, PCRE2_NO_UTF_CHECK, data, context);
    if (rc != PCRE2_ERROR_JIT_STACKLIMIT) return rc;
  }
  return pcre2_match(code.get(), subject, size, start, PCRE2_NO_UTF_CHECK | PCRE2_NO_JIT, data, context);
}

PreTokenizer::Scratch::Scratch() : impl_(std::make_unique<Impl>()) {}
PreTokenizer::Scratch::~Scratch() = default;

PreTokenizer::PreTokenizer() = default;
PreTokenizer::PreTokenizer(PreTokenizer&&) noexcept = default;
PreTokenizer::~PreTokenizer() = default;

Result<PreTokenizer> PreTokenizer::Create(const Json& spec) {
  PreTokenizer result;
  bool has_byte_level = false;
  RT_RETURN_IF_ERROR(result.Add(spec, &has_byte_level));
  if (!has_byte_level) {
    return {Code::kUnsupported, "pre_tokenizer: expected a ByteLevel part (byte-level BPE), found none"};
  }
  return result;
}

Status PreTokenizer::Add(const Json& spec, bool* has_byte_level) {
  if (!spec.is_object() || !spec.contains("type") || !spec["type"].is_string()) {
    return {Code::kUnsupported, "pre_tokenizer: expected an object with a type, found " + std::string(spec.type_name())};
  }
  const std::string& type = spec["type"].get_ref<const std::string&>();
  if (type == "Sequence") {
    const auto parts = spec.find("pretokenizers");
    if (parts == spec.end() || !parts->is_array()) {
      return {Code::kDataLoss, "pre_tokenizer Sequence: expected an array pretokenizers"};
    }
    for (const Json& part : *parts) {
      // Nesting has no use and would let a hostile file recurse.
      if (part.is_object() && part.value("type", Json()) == "Sequence") {
        return {Code::kUnsupported, "pre_tokenizer: a Sequence inside a Sequence"};
      }
      RT_RETURN_IF_ERROR(Add(part, has_byte_level));
    }
    return {};
  }
  if (type == "Split") return AddSplit(spec);
  if (type == "Digits") return AddDigits(spec);
  if (type == "ByteLevel") {
    *has_byte_level = true;
    if (spec.value("add_prefix_space", Json(true)) != false) {
      return {Code::kUnsupported, "pre_tokenizer ByteLevel: add_prefix_space: expected false"};
    }
    if (spec.value("use_regex", Json(true)) != false) return AddRegex(kGpt2Pattern, false, true, true);
    return {};
  }
  return {Code::kUnsupported, "pre_tokenizer: expected Split, ByteLevel, Digits or Sequence, found " + Quote(type)};
}

Status PreTokenizer::AddSplit(const Json& spec) {
  const Json pattern = spec.value("pattern", Json());
  const bool literal = pattern.is_object() && pattern.contains("String");
  const Json text = pattern.is_object() ? pattern.value(literal ? "String" : "Regex", Json()) : Json();
  if (!text.is_string()) {
    return {Code::kDataLoss, "pre_tokenizer Split: pattern: expected {\"Regex\": text} or {\"String\": text}"};
  }
  const Json behavior = spec.value("behavior", Json());
  const bool invert = spec.value("invert", Json(false)) == true;
  if (behavior != "Isolated" && behavior != "Removed") {
    return {Code::kUnsupported, "pre_tokenizer Split: behavior: expected Isolated or Removed, found " + behavior.dump()};
  }
  const bool isolated = behavior == "Isolated";
  return AddRegex(text.get_ref<const std::string&>(), literal, isolated || invert, isolated || !invert);
}

Status PreTokenizer::AddDigits(const Json& spec) {
  const bool individual = spec.value("individual_digits", Json(false)) == true;
  return AddRegex(individual ? R"(\p{N})" : R"(\p{N}+)", false, true, true);
}

Status PreTokenizer::AddRegex(std::string_view pattern, bool literal, bool keep_matches, bool keep_gaps) {
  // A class that starts with ']' would confuse the rewriting; no known tokenizer has one.
  const std::string text = literal ? std::string(pattern) : WithUnicodeSpace(pattern);
  int error = 0;
  PCRE2_SIZE offset = 0;
  const uint32_t options = literal ? PCRE2_UTF | PCRE2_LITERAL : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
  CodePtr code(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), options, &error, &offset, nullptr));
  if (!code) {
    char message[160];
    pcre2_get_error_message(error, reinterpret_cast<PCRE2_UCHAR*>(message), sizeof(message));
    return {Code::kUnsupported, "pre_tokenizer Split: pattern " + Quote(pattern) + ": " + message};
  }
  // Without JIT the interpreter gives the same matches, slower.
  const bool jit = pcre2_jit_compile(code.get(), PCRE2_JIT_COMPLETE) == 0;
  steps_.push_back({std::move(code), jit, keep_matches, keep_gaps});
  return {};
}

Status PreTokenizer::Split(size_t step, std::string_view text, Scratch* scratch, Sink sink) const {
  if (text.empty()) return {};
  if (step == steps_.size()) {
    sink.call(sink.object, text);
    return {};
  }
  const Step& current = steps_[step];
  Scratch::Impl& impl = *scratch->impl_;
  pcre2_match_data* data = impl.Data(step);
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(data);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(text.data());
  size_t done = 0;   // everything before is handed on
  size_t start = 0;  // where to look for the next match
  while (start < text.size()) {
    const int rc = current.Match(subject, text.size(), start, data, impl.context);
    if (rc == PCRE2_ERROR_NOMATCH) break;
    if (rc < 0) {
      return {Code::kResourceExhausted, "pre_tokenizer: matching stopped with PCRE2 error " + std::to_string(rc) +
                                            " at byte " + std::to_string(start)};
    }
    const size_t begin = offsets[0];
    const size_t end = offsets[1];
    if (end <= begin) {  // an empty match splits nothing; go on after this character
      start = begin + 1;
      while (start < text.size() && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) ++start;
      continue;
    }
    if (current.keep_gaps) RT_RETURN_IF_ERROR(Split(step + 1, text.substr(done, begin - done), scratch, sink));
    if (current.keep_matches) RT_RETURN_IF_ERROR(Split(step + 1, text.substr(begin, end - begin), scratch, sink));
    done = start = end;
  }
  if (current.keep_gaps) return Split(step + 1, text.substr(done), scratch, sink);
  return {};
}

}  // namespace rt
