// Progress of a long job as text: a bar redrawn in place on a terminal, plain lines otherwise.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace rt::weights {

// Decides what to show; knows no clock and no stream, so it is tested as a function.
class ProgressText {
 public:
  // `terminal`: redraw one line with '\r'. Otherwise a line is due when at least 2 s and 10 % have passed
  // since the one before, and at the end, so that a log gets at most eleven.
  ProgressText(std::string label, bool terminal) : label_(std::move(label)), terminal_(terminal) {}

  // What to write now (may be empty); `seconds` since the start. After done = total nothing more is due.
  std::string Update(uint64_t done_bytes, uint64_t total_bytes, double seconds);

 private:
  std::string Bar(int percent, const std::string& figures, bool last);

  const std::string label_;
  const bool terminal_;
  bool finished_ = false;
  int last_percent_ = 0;
  double last_seconds_ = 0;
  size_t last_width_ = 0;  // of the bar line, to blank what a shorter one leaves
};

// A LoadProgress that writes to the file descriptor (2 for standard error); the bar if it is a terminal.
std::function<void(uint64_t, uint64_t)> MakeProgressWriter(std::string label, int fd);

}  // namespace rt::weights
