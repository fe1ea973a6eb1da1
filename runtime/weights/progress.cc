#include "runtime/weights/progress.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <memory>

namespace rt::weights {
namespace {

constexpr double kSecondsALine = 2;
constexpr int kPercentALine = 10;
constexpr int kBarCells = 30;

std::string Megabytes(uint64_t bytes) {
  char text[32];
  std::snprintf(text, sizeof text, bytes < 100'000'000 ? "%.1f" : "%.0f", static_cast<double>(bytes) / 1e6);
  return text;
}

// "12.3 / 20.9 MB, 880 MB/s"
std::string Figures(uint64_t done, uint64_t total, double seconds) {
  std::string text = Megabytes(done) + " / " + Megabytes(total) + " MB";
  if (seconds > 0)
    text += ", " + Megabytes(static_cast<uint64_t>(static_cast<double>(done) / seconds)) + " MB/s";
  return text;
}

void WriteAll(int fd, const std::string& text) {
  for (size_t at = 0; at < text.size();) {
    const ssize_t written = ::write(fd, text.data() + at, text.size() - at);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;  // nobody reads: progress is not worth an error
    at += static_cast<size_t>(written);
  }
}

}  // namespace

std::string ProgressText::Update(uint64_t done, uint64_t total, double seconds) {
  if (finished_) return "";
  finished_ = done >= total;
  const int percent =
      finished_ ? 100 : static_cast<int>(100.0 * static_cast<double>(done) / static_cast<double>(total));
  const std::string figures = Figures(done, total, seconds);
  if (terminal_) return Bar(percent, figures, finished_);
  if (!finished_ && (seconds - last_seconds_ < kSecondsALine || percent - last_percent_ < kPercentALine))
    return "";
  last_seconds_ = seconds;
  last_percent_ = percent;
  return label_ + ": " + std::to_string(percent) + " % (" + figures + ")\n";
}

std::string ProgressText::Bar(int percent, const std::string& figures, bool last) {
  const int filled = percent * kBarCells / 100;
  std::string line = label_ + " [" + std::string(static_cast<size_t>(filled), '#') +
                     std::string(static_cast<size_t>(kBarCells - filled), '.') + "] " +
                     std::to_string(percent) + " % " + figures;
  const size_t width = line.size();
  if (width < last_width_) line.append(last_width_ - width, ' ');
  last_width_ = width;
  return "\r" + line + (last ? "\n" : "");
}

std::function<void(uint64_t, uint64_t)> MakeProgressWriter(std::string label, int fd) {
  auto text = std::make_shared<ProgressText>(std::move(label), ::isatty(fd) == 1);
  const auto start = std::chrono::steady_clock::now();
  return [text, start, fd](uint64_t done, uint64_t total) {
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
    WriteAll(fd, text->Update(done, total, seconds));
  };
}

}  // namespace rt::weights
