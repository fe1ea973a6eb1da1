#include "runtime/weights/progress.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>

namespace rt::weights {
namespace {

TEST(Progress, PlainLinesWaitForTwoSecondsAndTenPercent) {
  ProgressText text("weights", false);
  EXPECT_EQ(text.Update(0, 1000, 0.1), "");
  EXPECT_EQ(text.Update(500, 1000, 1.9), "");  // too soon
  EXPECT_EQ(text.Update(500, 1000, 2.0), "weights: 50 % (0.0 / 0.0 MB, 0.0 MB/s)\n");
  EXPECT_EQ(text.Update(590, 1000, 60), "");  // too little
  EXPECT_NE(text.Update(600, 1000, 61), "");
}

TEST(Progress, LastLineAlwaysComesAndOnlyOnce) {
  ProgressText text("weights", false);
  EXPECT_EQ(text.Update(20'900'000, 20'900'000, 0.02), "weights: 100 % (20.9 / 20.9 MB, 1045 MB/s)\n");
  EXPECT_EQ(text.Update(20'900'000, 20'900'000, 0.03), "");
}

TEST(Progress, NothingToLoadIsComplete) {
  ProgressText text("weights", false);
  EXPECT_EQ(text.Update(0, 0, 0), "weights: 100 % (0.0 / 0.0 MB)\n");
}

TEST(Progress, TerminalBarIsRedrawnOverItsOwnTraces) {
  ProgressText text("weights", true);
  const std::string first = text.Update(1'000'000, 4'000'000, 0.001);
  EXPECT_EQ(first, "\rweights [#######.......................] 25 % 1.0 / 4.0 MB, 1000 MB/s");
  const std::string second = text.Update(2'000'000, 4'000'000, 2);
  EXPECT_EQ(second, "\rweights [###############...............] 50 % 2.0 / 4.0 MB, 1.0 MB/s ");
  EXPECT_EQ(second.size(), first.size());
  EXPECT_EQ(text.Update(4'000'000, 4'000'000, 4),
            "\rweights [##############################] 100 % 4.0 / 4.0 MB, 1.0 MB/s\n");
}

TEST(Progress, WriterIsPlainOnAPipeAndIgnoresAClosedDescriptor) {
  int ends[2];
  ASSERT_EQ(::pipe(ends), 0) << std::strerror(errno);
  MakeProgressWriter("weights", ends[1])(10, 10);
  char buffer[128] = {};
  ASSERT_GT(::read(ends[0], buffer, sizeof buffer - 1), 0);
  EXPECT_EQ(std::string(buffer).substr(0, 30), "weights: 100 % (0.0 / 0.0 MB, ");
  ::close(ends[1]);
  MakeProgressWriter("weights", ends[1])(10, 10);  // EBADF is ignored
  ::close(ends[0]);
}

}  // namespace
}  // namespace rt::weights
