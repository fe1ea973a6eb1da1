// For tests: whether a sanitizer slows this build down, and sizes that depend on it.
#pragma once

namespace rt::kernels {

// Sanitizers make a test ten to fifty times slower: repetition counts and steps through sizes go through Scaled.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif
template <typename T>
constexpr T Scaled(T release, T sanitized) {
  return kSanitized ? sanitized : release;
}

}  // namespace rt::kernels
