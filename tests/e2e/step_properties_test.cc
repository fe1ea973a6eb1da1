// What must hold for every model however the scheduler cuts and mixes its work: pieces, batch mates, padding,
// empty rows, poisoned memory, thread counts, and composites against their decompositions. Steps run without
// the engine, so that each case is exactly the one named.
#include "tests/e2e/goldens.h"
#include "tests/e2e/model_setup.h"
#include "tests/e2e/step_driver.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <numeric>
#include <random>
#include <set>

namespace rt::testing {
namespace {

// Two float32 evaluations in another order of additions; each is held within 5e-6 of the truth by
// golden_f32_test.
constexpr double kSplitF32 = 5e-6;
// bf16 activations: an addition in another order flips roundings of 2^-9; over the layers that stays within a
// few units of the logits' scale.
constexpr double kSplitBf16 = 3e-2;

struct Case {
  ModelCase model;
  std::string isa, compute_dtype;
  bool f32() const { return compute_dtype == "float32"; }
  double split_bound() const { return f32() ? kSplitF32 : kSplitBf16; }
};
void PrintTo(const Case& c, std::ostream* out) {
  *out << c.model.name << " " << c.isa << " " << c.compute_dtype;
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const ModelCase& model : Families()) {
    for (const std::string& isa : IsaLevels()) {
      for (const char* dtype : {"float32", "bfloat16"}) cases.push_back({model, isa, dtype});
    }
  }
  return cases;
}

using Pieces = std::vector<int32_t>;

// What a sequence left behind, as bits.
struct Trace {
  std::vector<float> logits;
  std::vector<char> state;
  std::vector<std::vector<float>> recurrent;
};

class StepProperties : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int32_t kMaxTokens = 256;

  StepProperties() : session_(OpenSession(MakeSetup())) {
    for (const GoldenPrompt& prompt : ReadGoldenPrompts(GetParam().model.name)) {
      text_.insert(text_.end(), prompt.input_ids.begin(), prompt.input_ids.end());
      text_.insert(text_.end(), prompt.tokens.begin(), prompt.tokens.end());
    }
  }

  static ModelSetup MakeSetup() {
    ModelSetup setup;
    setup.model = GetParam().model;
    setup.isa = GetParam().isa;
    setup.compute_dtype = GetParam().compute_dtype;
    setup.state_dtype = "float32";
    setup.max_step_tokens = kMaxTokens;
    return setup;
  }

  int32_t Draw(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(random_);
  }
  // Text the model knows: a stretch of the golden prompts and answers.
  std::vector<int32_t> DrawText(int32_t length) {
    const auto start = static_cast<size_t>(Draw(0, static_cast<int32_t>(text_.size()) - length));
    return {text_.begin() + static_cast<std::ptrdiff_t>(start),
            text_.begin() + static_cast<std::ptrdiff_t>(start) + length};
  }
  Pieces Repeat(int32_t size, int32_t length) {
    return Pieces(static_cast<size_t>((length + size - 1) / size), size);
  }
  Pieces RandomPieces(int32_t length) {
    static constexpr int32_t kSizes[] = {1, 2, 3, 63, 64, 65};
    Pieces pieces;
    for (int32_t total = 0; total < length; total += pieces.back())
      pieces.push_back(Draw(0, 1) != 0 ? kSizes[Draw(0, 5)] : Draw(1, 40));
    return pieces;
  }

  static Trace TraceOf(const StepDriver& driver, int32_t sequence, RowOutput out) {
    EXPECT_FALSE(out.logits.empty()) << "the probe saw no logits";
    return {std::move(out.logits), driver.StateBytes(sequence), driver.RecurrentStates(sequence)};
  }
  Trace Run(StepDriver* driver, int32_t sequence, std::span<const int32_t> ids, const Pieces& pieces) {
    driver->Reset(sequence);
    return TraceOf(*driver, sequence, driver->Prefill(sequence, ids, pieces));
  }
  // The next `size` tokens of a sequence, of the kind a scheduler would give them.
  static Feed NextFeed(const StepDriver& driver, int32_t sequence, std::span<const int32_t> ids,
                       size_t size) {
    const auto done = static_cast<size_t>(driver.num_cached(sequence));
    return {sequence, ids.subspan(done, size),
            size == 1 && done > 0 ? StepKind::kDecode : StepKind::kPrefill};
  }
  // Pieces that cover `ids`, each a step of its own.
  static Trace RunByKind(StepDriver* driver, int32_t sequence, std::span<const int32_t> ids,
                         const Pieces& pieces) {
    driver->Reset(sequence);
    RowOutput last;
    for (const int32_t piece : pieces) {
      const size_t left = ids.size() - static_cast<size_t>(driver->num_cached(sequence));
      if (left == 0) break;
      const size_t size = std::min(static_cast<size_t>(piece), left);
      last = std::move(driver->Step({NextFeed(*driver, sequence, ids, size)}).front());
    }
    return TraceOf(*driver, sequence, std::move(last));
  }
  // Within the bound of the dtype.
  void ExpectNear(const Trace& found, const Trace& expected) {
    worst_logits_ = std::max(worst_logits_,
                             ExpectClose("logits", found.logits, expected.logits, GetParam().split_bound()));
    ASSERT_EQ(found.recurrent.size(), expected.recurrent.size());
    for (size_t i = 0; i < found.recurrent.size(); ++i) {
      worst_state_ =
          std::max(worst_state_, ExpectClose("state of linear layer " + std::to_string(i), found.recurrent[i],
                                             expected.recurrent[i], GetParam().split_bound()));
    }
  }
  static void ExpectSameBits(const Trace& found, const Trace& expected) {
    EXPECT_TRUE(found.logits == expected.logits)
        << "logits differ, by " << Compare(found.logits, expected.logits).relative << " of the largest";
    EXPECT_TRUE(found.state == expected.state) << "bytes of conv windows or recurrent states differ";
  }
  void PrintWorst(const char* what) const {
    std::printf("%s, %s: worst difference of logits %.2e, states %.2e of the largest\n",
                ::testing::PrintToString(GetParam()).c_str(), what, worst_logits_, worst_state_);
  }

  std::mt19937 random_{20260};
  std::unique_ptr<Session> session_;
  std::vector<int32_t> text_;
  double worst_logits_ = 0, worst_state_ = 0;
};

TEST_P(StepProperties, PrefillInAnyPiecesEqualsOneShot) {
  StepDriver driver(session_->runner(), 2, kMaxTokens);
  const auto check = [&](int32_t length, const Pieces& pieces) {
    SCOPED_TRACE("length " + std::to_string(length) + ", pieces " + ::testing::PrintToString(pieces));
    const std::vector<int32_t> ids = DrawText(length);
    const Trace whole = Run(&driver, 0, ids, {});
    ExpectNear(Run(&driver, 1, ids, pieces), whole);
  };
  for (const int32_t size : {1, 2, 3, 63, 64, 65}) check(Scaled(200, 70), Repeat(size, Scaled(200, 70)));
  for (int i = 0; i < Scaled(24, 2); ++i) {
    const int32_t length = Draw(1, 200);
    check(length, RandomPieces(length));
  }
  PrintWorst("pieces");
}

// Pieces that end where chunks end, and pieces short enough for the recurrent form, take the same order of
// operations as what they replace.
TEST_P(StepProperties, PiecesOfWholeChunksAndOfFewTokensKeepEveryBit) {
  StepDriver driver(session_->runner(), 2, kMaxTokens);
  // Every last piece is longer than a recurrent run, as the whole is.
  const std::vector<int32_t> ids = DrawText(210);
  const Trace whole = Run(&driver, 0, ids, {});
  for (const Pieces& pieces : {Pieces{64, 64, 64, 18}, Pieces{128, 82}, Pieces{64, 146}}) {
    SCOPED_TRACE(::testing::PrintToString(pieces));
    ExpectSameBits(Run(&driver, 1, ids, pieces), whole);
  }
  const std::vector<int32_t> few(ids.begin(), ids.begin() + 40);
  const Trace singles = Run(&driver, 0, few, Repeat(1, 40));
  for (const int32_t size : {2, 3, 8}) {
    SCOPED_TRACE(size);
    ExpectSameBits(Run(&driver, 1, few, Repeat(size, 40)), singles);
  }
}

TEST_P(StepProperties, DecodingContinuesAPrefill) {
  StepDriver driver(session_->runner(), 2, kMaxTokens);
  for (int i = 0; i < Scaled(12, 2); ++i) {
    const int32_t n = Draw(1, 150), m = Draw(1, 30);
    SCOPED_TRACE("prefill " + std::to_string(n) + ", decode " + std::to_string(m));
    const std::vector<int32_t> ids = DrawText(n + m);
    const Trace whole = Run(&driver, 0, ids, {});
    driver.Reset(1);
    RowOutput out = driver.Prefill(1, std::span(ids).first(static_cast<size_t>(n)));
    for (int32_t t = n; t < n + m; ++t) out = driver.Decode(1, ids[static_cast<size_t>(t)]);
    ExpectNear(TraceOf(driver, 1, std::move(out)), whole);
  }
  PrintWorst("decode after prefill");
}

// Every row of the CPU plugin with a float32 state declares batch invariance: batch mates change no bit. The
// kind of a row is the sequence's own (one token after others is a decode row), so alone has the same kinds:
// latent attention takes another order of operations for decode rows than for prefill rows.
TEST_P(StepProperties, AnyBatchMixEqualsAloneBitForBit) {
  constexpr int32_t kSequences = 6;
  std::vector<std::vector<int32_t>> ids;
  std::vector<Pieces> pieces;
  std::vector<Trace> alone;
  {
    StepDriver driver(session_->runner(), kSequences, kMaxTokens);
    for (int32_t s = 0; s < kSequences; ++s) {
      ids.push_back(DrawText(Draw(1, Scaled(120, 40))));
      pieces.push_back(s % 2 == 0 ? RandomPieces(static_cast<int32_t>(ids.back().size()))
                                  : Pieces{Draw(1, 40)});
      while (std::accumulate(pieces.back().begin(), pieces.back().end(), 0) <
             static_cast<int32_t>(ids.back().size()))
        pieces.back().push_back(1);
      alone.push_back(RunByKind(&driver, s, ids.back(), pieces.back()));
    }
  }
  StepDriver driver(session_->runner(), kSequences, kMaxTokens);
  std::vector<size_t> next_piece(kSequences, 0);
  std::vector<Trace> mixed(kSequences);
  for (int32_t left = kSequences; left > 0;) {
    std::vector<Feed> feeds;
    size_t budget = kMaxTokens;
    for (int32_t s = 0; s < kSequences; ++s) {
      const auto at = static_cast<size_t>(s);
      const auto done = static_cast<size_t>(driver.num_cached(s));
      if (done == ids[at].size() || Draw(0, 3) == 0) continue;
      const size_t size = std::min(static_cast<size_t>(pieces[at][next_piece[at]]), ids[at].size() - done);
      if (size > budget) continue;
      budget -= size;
      ++next_piece[at];
      feeds.push_back(NextFeed(driver, s, ids[at], size));
    }
    if (feeds.empty()) continue;
    std::shuffle(feeds.begin(), feeds.end(), random_);
    std::stable_sort(feeds.begin(), feeds.end(),
                     [](const Feed& a, const Feed& b) { return a.kind < b.kind; });
    std::vector<RowOutput> outputs = driver.Step(feeds);
    for (size_t i = 0; i < feeds.size(); ++i) {
      const int32_t s = feeds[i].sequence;
      if (driver.num_cached(s) < static_cast<int32_t>(ids[static_cast<size_t>(s)].size())) continue;
      mixed[static_cast<size_t>(s)] = TraceOf(driver, s, std::move(outputs[i]));
      --left;
    }
  }
  for (size_t s = 0; s < kSequences; ++s) {
    SCOPED_TRACE("sequence " + std::to_string(s));
    ExpectSameBits(mixed[s], alone[s]);
  }
}

// A padding row has state slot -1: slot 0 is a live sequence's and must keep its bits; so must every other
// slot. What a padding row gives depends on no state: its own output of a recurrent layer is zero.
TEST_P(StepProperties, PaddingRowsTouchNoStateAndChangeNoLiveRow) {
  const std::vector<int32_t> ids = DrawText(30), pad = DrawText(9);
  StepDriver driver(session_->runner(), 4, kMaxTokens);
  const auto prepare = [&] {
    for (int32_t s = 0; s < 4; ++s) Run(&driver, s, ids, {});
    for (int32_t s = 1; s < 4; ++s) driver.Reset(s);
  };
  prepare();
  const std::vector<RowOutput> live = driver.Step({{0, std::span(ids).first(1), StepKind::kDecode}});
  const std::vector<char> live_state = driver.StateBytes(0);

  prepare();
  std::vector<std::vector<char>> before;
  for (int32_t s = 0; s < 4; ++s) before.push_back(driver.StateBytes(s));
  const std::vector<Feed> padding = {{1, std::span(pad).first(1), StepKind::kDecode, true},
                                     {2, pad, StepKind::kPrefill, true}};
  const std::vector<RowOutput> padded = driver.Step(padding);
  for (int32_t s = 0; s < 4; ++s)
    EXPECT_TRUE(driver.StateBytes(s) == before[static_cast<size_t>(s)])
        << "a step of padding rows wrote state slot " << s;

  const std::vector<RowOutput> both =
      driver.Step({{0, std::span(ids).first(1), StepKind::kDecode}, padding[0], padding[1]});
  EXPECT_TRUE(both[0].logits == live[0].logits) << "padding rows changed a live row's logits";
  EXPECT_TRUE(driver.StateBytes(0) == live_state) << "padding rows changed a live row's state";
  for (int32_t s = 1; s < 4; ++s)
    EXPECT_TRUE(driver.StateBytes(s) == before[static_cast<size_t>(s)])
        << "state slot " << s << " was written";
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_TRUE(both[i + 1].logits == padded[i].logits)
        << "padding row " << i << " depends on what else runs or on state bytes";
    EXPECT_TRUE(std::all_of(padded[i].logits.begin(), padded[i].logits.end(),
                            [](float x) { return std::isfinite(x); }))
        << "padding row " << i;
  }
}

TEST_P(StepProperties, EmptySequencesLeaveTheirStateBitIdentical) {
  const std::vector<int32_t> ids = DrawText(70);
  StepDriver driver(session_->runner(), 3, kMaxTokens);
  Run(&driver, 0, ids, {});
  Run(&driver, 1, ids, {});
  const std::vector<RowOutput> alone = driver.Step({{0, std::span(ids).first(5)}});
  const std::vector<char> after = driver.StateBytes(0);
  Run(&driver, 0, ids, {});
  const std::vector<char> before = driver.StateBytes(1), unused = driver.StateBytes(2);
  const std::vector<RowOutput> with_empty = driver.Step({{1, {}}, {0, std::span(ids).first(5)}, {2, {}}});
  EXPECT_TRUE(driver.StateBytes(1) == before) << "an empty row changed its state";
  EXPECT_TRUE(driver.StateBytes(2) == unused) << "an empty row without initial state wrote its slot";
  EXPECT_TRUE(with_empty[1].logits == alone[0].logits) << "empty rows changed a neighbour's logits";
  EXPECT_TRUE(driver.StateBytes(0) == after) << "empty rows changed a neighbour's state";
}

// One script for two sessions: a prefill in pieces, then decoding of two sequences together.
Trace RunScript(Session* session, std::span<const int32_t> ids, std::vector<int32_t>* tokens = nullptr) {
  StepDriver driver(session->runner(), 2, 256);
  driver.Prefill(0, ids.first(9));
  RowOutput out = driver.Prefill(1, ids, Pieces{70, 3});
  for (int i = 0; i < 12; ++i) {
    const int32_t best = out.sampled.token_id, other = ids[static_cast<size_t>(i)];
    if (tokens != nullptr) tokens->push_back(best);
    std::vector<RowOutput> rows = driver.Step(
        {{0, std::span(&other, 1), StepKind::kDecode}, {1, std::span(&best, 1), StepKind::kDecode}});
    out = std::move(rows[1]);
  }
  return {out.logits, driver.StateBytes(1), driver.RecurrentStates(1)};
}

TEST_P(StepProperties, PoisonedCacheMemoryChangesNoBit) {
  const std::vector<int32_t> ids = DrawText(90);
  const Trace clean = RunScript(session_.get(), ids);
  ModelSetup setup = MakeSetup();
  setup.fill_arena_byte = 0xff;  // NaN in float32, bfloat16 and float16
  ExpectSameBits(RunScript(OpenSession(setup).get(), ids), clean);
}

TEST_P(StepProperties, TheNumberOfThreadsChangesNoBit) {
  const std::vector<int32_t> ids = DrawText(90);
  const Trace one = RunScript(session_.get(), ids);
  for (const int threads : {2, 3}) {
    SCOPED_TRACE(threads);
    ModelSetup setup = MakeSetup();
    setup.num_threads = threads;
    ExpectSameBits(RunScript(OpenSession(setup).get(), ids), one);
  }
}

// Denying the kernels of a composite makes the runtime plan its decomposition. In float32 that is the same
// arithmetic up to its order; in bf16 the pieces round what the composite keeps in float32 between them, so
// only float32 is compared. Each composite that runs whole here is taken apart alone, then all together. No
// plugin has kernels for the pieces of attention_mixer: denying it must say so.
TEST_P(StepProperties, DecompositionsGiveTheTokensOfTheirComposites) {
  if (!GetParam().f32()) return;
  const std::vector<int32_t> ids = DrawText(90);
  std::vector<int32_t> tokens;
  const Trace composite = RunScript(session_.get(), ids, &tokens);
  std::set<std::string> composites;
  for (const Stage& stage : session_->negotiated().stages) {
    const ops::OpDef* def = ops::FindOp(stage.op.op, stage.op.version);
    ASSERT_NE(def, nullptr) << stage.op.op;
    if (def->composite) composites.insert(stage.op.op + "*");
  }
  const std::string without_pieces = std::string(RT_OP_ATTENTION_MIXER) + "*";
  if (composites.erase(without_pieces) > 0) {
    ModelSetup setup = MakeSetup();
    setup.deny = {without_pieces};
    try {
      OpenSession(setup);
      ADD_FAILURE() << "the pieces of attention_mixer run: compare them like the others";
    } catch (const std::runtime_error& error) {
      EXPECT_NE(std::string(error.what()).find("no loaded plugin offers " RT_OP_QK_NORM_ROPE), std::string::npos) << error.what();
    }
  }
  ASSERT_GE(composites.size(), 2u) << "too few composites run whole: this test shows nothing";
  std::vector<std::vector<std::string>> cases;
  for (const std::string& pattern : composites) cases.push_back({pattern});
  cases.emplace_back(composites.begin(), composites.end());
  for (const std::vector<std::string>& deny : cases) {
    SCOPED_TRACE(::testing::PrintToString(deny));
    ModelSetup setup = MakeSetup();
    setup.deny = deny;
    const auto session = OpenSession(setup);
    for (const Stage& stage : session->negotiated().stages) {
      for (const std::string& pattern : deny)
        EXPECT_NE(stage.op.op + "*", pattern) << "the composite still runs";
    }
    std::vector<int32_t> pieces_tokens;
    ExpectNear(RunScript(session.get(), ids, &pieces_tokens), composite);
    EXPECT_EQ(pieces_tokens, tokens);
  }
  PrintWorst("decompositions");
}

INSTANTIATE_TEST_SUITE_P(Models, StepProperties, ::testing::ValuesIn(Cases()), [](const auto& info) {
  return TestName(info.param.model.name + "_" + info.param.isa + "_" + info.param.compute_dtype);
});

}  // namespace
}  // namespace rt::testing
