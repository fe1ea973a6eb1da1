#include "runtime/server/delta_mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

namespace rt::server {
namespace {

GenerationDelta Delta(const std::string& text, int32_t token_id, int32_t num_output_tokens) {
  GenerationDelta delta;
  delta.text = text;
  delta.token_ids = {token_id};
  delta.logprobs = {{token_id, -1.0f, {}}};
  delta.num_output_tokens = num_output_tokens;
  return delta;
}

TEST(DeltaMailbox, NewsThatWaitAreMergedInOrderAndWakeOnce) {
  int wakes = 0;
  const auto mailbox = std::make_shared<DeltaMailbox>(2, [&] { ++wakes; });
  const auto first = mailbox->SinkFor(0), second = mailbox->SinkFor(1);
  first->OnDelta(Delta("a", 1, 1));
  second->OnDelta(Delta("x", 9, 1));
  GenerationDelta last = Delta("b", 2, 2);
  last.finish_reason = FinishReason::kStop;
  last.stop_string = "END";
  first->OnDelta(last);
  EXPECT_EQ(wakes, 1);
  const auto news = mailbox->Take();
  ASSERT_EQ(news.size(), 2u);
  EXPECT_EQ(news[0].index, 0u);
  EXPECT_EQ(news[0].delta.text, "ab");
  EXPECT_EQ(news[0].delta.token_ids, (std::vector<int32_t>{1, 2}));
  EXPECT_EQ(news[0].delta.logprobs.size(), 2u);
  EXPECT_EQ(news[0].delta.finish_reason, FinishReason::kStop);
  EXPECT_EQ(news[0].delta.stop_string, "END");
  EXPECT_EQ(news[0].delta.num_output_tokens, 2);
  EXPECT_EQ(news[1].delta.text, "x");
  EXPECT_FALSE(mailbox->AllFinished());
  EXPECT_TRUE(mailbox->Take().empty());
  second->OnDelta(last);
  EXPECT_EQ(wakes, 2) << "wakes again after a Take";
  EXPECT_TRUE(mailbox->AllFinished());
}

TEST(DeltaMailbox, DetachedMailboxStaysSilentButKnowsTheEnd) {
  int wakes = 0;
  auto mailbox = std::make_shared<DeltaMailbox>(1, [&] { ++wakes; });
  const auto sink = mailbox->SinkFor(0);
  mailbox->Detach();
  sink->OnDelta(Delta("a", 1, 1));
  GenerationDelta last;
  last.finish_reason = FinishReason::kAbort;
  sink->OnDelta(last);
  EXPECT_EQ(wakes, 0);
  EXPECT_TRUE(mailbox->AllFinished());
  EXPECT_TRUE(mailbox->Take().empty());
  std::weak_ptr<DeltaMailbox> weak = mailbox;
  mailbox.reset();
  EXPECT_FALSE(weak.expired()) << "the sink keeps its mailbox";
}

TEST(DeltaMailbox, NothingIsLostBetweenAWriterAndATaker) {
  constexpr int kDeltas = 20000;
  std::atomic<bool> woken{false};
  const auto mailbox = std::make_shared<DeltaMailbox>(1, [&] { woken = true; });
  std::thread writer([sink = mailbox->SinkFor(0)] {
    for (int i = 1; i <= kDeltas; ++i) {
      GenerationDelta delta = Delta("", i, i);
      if (i == kDeltas) delta.finish_reason = FinishReason::kLength;
      sink->OnDelta(std::move(delta));
    }
  });
  int next = 1;
  bool finished = false;
  while (!finished) {
    if (!woken.exchange(false)) {
      std::this_thread::yield();
      continue;
    }
    for (const auto& news : mailbox->Take()) {
      for (const int32_t id : news.delta.token_ids) ASSERT_EQ(id, next++);
      finished = news.delta.finish_reason.has_value();
    }
  }
  writer.join();
  EXPECT_EQ(next, kDeltas + 1);
}

}  // namespace
}  // namespace rt::server
