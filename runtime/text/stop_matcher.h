// Finds stop strings in streamed text, across any borders, and holds back no more than might still become one.
#pragma once

#include <cstdint>
#include <rt/plugin/status.hpp>
#include <string>
#include <string_view>
#include <vector>

namespace rt {

// The stop that is complete first ends the text; of several that end at the same byte, the longest. So the result does
// not depend on how the text was cut into pieces. One per sequence.
class StopMatcher {
 public:
  // `stops` may be empty (nothing is ever held); an empty string among them is kInvalidArgument naming its index.
  static Result<StopMatcher> Create(std::vector<std::string> stops);

  // Text that no stop string can reach any more. Once stopped() is true, further text is ignored.
  // With `text` whole characters and stop strings valid UTF-8, what is returned is whole characters.
  std::string Push(std::string_view text);

  // End of the sequence: the held text, which did not become a stop string.
  std::string Finish();

  bool stopped() const { return matched_ >= 0; }
  // Index of the stop string found, or -1.
  int matched() const { return matched_; }
  size_t held_bytes() const { return held_.size(); }

 private:
  // Knuth-Morris-Pratt: `border[k]` is the length of the longest proper border of the first k + 1 bytes.
  struct Pattern {
    std::string text;
    std::vector<uint32_t> border;
    size_t state = 0;  // bytes of `text` that the input ends with
  };

  StopMatcher() = default;

  std::vector<Pattern> patterns_;
  std::string held_;  // the longest suffix of the input that begins a stop string
  int matched_ = -1;
};

}  // namespace rt
