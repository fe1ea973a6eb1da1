// Encode throughput: text_tokenizer_bench --dir MODEL_FOLDER_OR_TOKENIZER_JSON TEXT_FILE is read from the environment,
// because Google Benchmark owns the command line: RT_BENCH_TOKENIZER and RT_BENCH_TEXT.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "runtime/text/tokenizer.h"

namespace rt {
namespace {

void Encode(benchmark::State& state) {
  const char* tokenizer_path = std::getenv("RT_BENCH_TOKENIZER");
  const char* text_path = std::getenv("RT_BENCH_TEXT");
  if (tokenizer_path == nullptr || text_path == nullptr) {
    state.SkipWithError("set RT_BENCH_TOKENIZER and RT_BENCH_TEXT");
    return;
  }
  auto tokenizer = Tokenizer::Load(tokenizer_path);
  std::ifstream in(text_path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  if (!tokenizer.ok() || text.empty()) {
    state.SkipWithError("cannot read the tokenizer or the text");
    return;
  }
  size_t tokens = 0;
  for (auto _ : state) {
    auto ids = (*tokenizer)->Encode(text, false);
    tokens = ids.ok() ? ids->size() : 0;
    benchmark::DoNotOptimize(ids);
  }
  state.SetBytesProcessed(static_cast<int64_t>(state.iterations()) * static_cast<int64_t>(text.size()));
  state.counters["tokens"] = static_cast<double>(tokens);
}
BENCHMARK(Encode)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace rt
