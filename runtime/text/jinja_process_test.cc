#include "runtime/text/jinja_process.h"

#include <gtest/gtest.h>
#include <signal.h>

#include <atomic>
#include <nlohmann/json.hpp>
#include <thread>

namespace rt {
namespace {

using Json = nlohmann::ordered_json;
using std::chrono::milliseconds;

std::unique_ptr<JinjaProcess> StartOrDie(const std::string& source, JinjaLimits limits = {}) {
  auto process = JinjaProcess::Start({{"default", source}}, std::move(limits));
  EXPECT_TRUE(process.ok()) << process.status().ToString();
  return process.ok() ? std::move(*process) : nullptr;
}

Result<std::string> RenderOnce(const std::string& source, const Json& context = Json::object(), JinjaLimits limits = {}) {
  const auto process = StartOrDie(source, std::move(limits));
  return process->Render("default", context, "");
}

TEST(JinjaProcess, TheEnvironmentIsTheOneTemplatesAreTestedWith) {
  const Json context = {{"x", {{"b", "<\u00E9>"}, {"a", {1, 2.5, nullptr, true}}}}, {"items", {1, 2, 3, 4}}};
  EXPECT_EQ(RenderOnce("{{ x | tojson }}", context).value(), "{\"b\": \"<\u00E9>\", \"a\": [1, 2.5, null, true]}");
  EXPECT_EQ(RenderOnce("{{ 'a' | tojson(indent=2) }}").value(), "\"a\"");
  EXPECT_EQ(RenderOnce("  {% if true %}\n  a\n  {% endif %}\nb").value(), "  a\nb");  // trim_blocks, lstrip_blocks
  EXPECT_EQ(RenderOnce("{% for i in items %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", context).value(),
            "12");
  EXPECT_EQ(RenderOnce("a{% generation %}b{% endgeneration %}c").value(), "abc");
  EXPECT_EQ(RenderOnce("{{ strftime_now('%Y') | length }}").value(), "4");
  EXPECT_EQ(RenderOnce("{{ ' x '.lstrip() + 'a,b'.split(',')[1] }}{{ undefined_one }}").value(), "x b");
  EXPECT_EQ(RenderOnce("a\n").value(), "a");  // keep_trailing_newline is off
}

TEST(JinjaProcess, RaiseExceptionGivesTheTemplatesOwnMessage) {
  const auto result = RenderOnce("{{ raise_exception('roles must alternate') }}");
  EXPECT_EQ(result.status().code(), Code::kInvalidArgument);
  EXPECT_EQ(result.status().message(), "chat template: roles must alternate");
}

TEST(JinjaProcess, ATemplateThatDoesNotCompileIsRefusedAtStartWithItsLine) {
  const auto process = JinjaProcess::Start({{"default", "a\n{% if %}"}}, {});
  EXPECT_EQ(process.status().code(), Code::kInvalidArgument);
  EXPECT_NE(process.status().message().find("line 2"), std::string::npos) << process.status().message();
}

TEST(JinjaProcess, ATemplateThatFailsSaysWhyWithoutATraceback) {
  for (const char* source : {"{{ 1 + 'a' }}", "{{ nothing.at.all }}", "{{ 'a' | no_such_filter }}", "{{ '\\ud800' }}"}) {
    auto process = JinjaProcess::Start({{"default", source}}, {});
    const Status status = process.ok() ? (*process)->Render("default", Json::object(), "").status() : process.status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << source;
    EXPECT_EQ(status.message().find("Traceback"), std::string::npos);
    EXPECT_EQ(status.message().find("File \""), std::string::npos) << status.message();
  }
}

TEST(JinjaProcess, TheSandboxRefusesWhatCouldReachTheMachine) {
  for (const char* source :
       {"{{ ''.__class__.__mro__ }}", "{{ [].append(1) }}", "{{ range(10**9) | list }}", "{{ x.__init__.__globals__ }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ (''|attr('__class__')).__base__ }}", "{% include '/etc/passwd' %}", "{% import 'os' as os %}"}) {
    const auto result = RenderOnce(source, {{"x", "text"}});
    EXPECT_EQ(result.status().code(), Code::kInvalidArgument) << source << " gave " << (result.ok() ? *result : "");
  }
  EXPECT_EQ(RenderOnce("{{ '{0.__class__}'.format(1) }}").value(), "");
}

TEST(JinjaProcess, AnEndlessTemplateIsStoppedAndTheNextRenderingWorks) {
  JinjaLimits limits;
  limits.timeout = milliseconds(2000);
  const auto process = StartOrDie(
      "{% if n %}{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}"
      "{% endfor %}{% endfor %}{% endif %}done", limits);
  const pid_t first = process->pid();
  EXPECT_EQ(process->Render("default", {{"n", true}}, "").status().code(), Code::kDeadlineExceeded);
  EXPECT_EQ(kill(first, 0), -1);  // reaped
  EXPECT_EQ(process->Render("default", {{"n", false}}, "").value(), "done");
  EXPECT_NE(process->pid(), first);
}

TEST(JinjaProcess, AMemoryBombIsRefusedAndTheNextRenderingWorks) {
  JinjaLimits limits;
  limits.memory_bytes = size_t{128} << 20;
  const auto process = StartOrDie("{% if n %}{{ ('a' * n) * n }}{% endif %}done", limits);
  const auto bomb = process->Render("default", {{"n", 1000000}}, "");
  EXPECT_EQ(bomb.status().code(), Code::kResourceExhausted) << bomb.status().ToString();
  EXPECT_EQ(process->Render("default", {{"n", 0}}, "").value(), "done");
}

TEST(JinjaProcess, ATextBeyondTheReplyLimitIsRefused) {
  JinjaLimits limits;
  limits.max_reply_bytes = 1 << 16;
  const auto process = StartOrDie("{{ 'a' * n }}", limits);
  EXPECT_EQ(process->Render("default", {{"n", 1 << 17}}, "").status().code(), Code::kResourceExhausted);
  EXPECT_EQ(process->Render("default", {{"n", 3}}, "").value(), "aaa");
}

TEST(JinjaProcess, AMacroWithoutEndIsAnErrorOfTheTemplate) {
  const auto result = RenderOnce("{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}");
  EXPECT_FALSE(result.ok());
}

TEST(JinjaProcess, AChildThatWasKilledIsStartedAnew) {
  const auto process = StartOrDie("{{ x }}");
  ASSERT_EQ(kill(process->pid(), SIGKILL), 0);
  std::string text;
  // The kill may only show while the request is under way; the one after that must work.
  for (int attempt = 0; attempt < 2 && text.empty(); ++attempt) {
    const auto result = process->Render("default", {{"x", "again"}}, "");
    if (result.ok()) text = *result;
  }
  EXPECT_EQ(text, "again");
}

TEST(JinjaProcess, WithoutJinjaTheErrorNamesThePackage) {
  JinjaLimits limits;
  limits.interpreters = {"/nonexistent/python3", "/bin/false"};
  const auto process = JinjaProcess::Start({{"default", "x"}}, limits);
  EXPECT_EQ(process.status().code(), Code::kUnavailable);
  EXPECT_NE(process.status().message().find("python3-jinja2"), std::string::npos);
  EXPECT_NE(process.status().message().find("/nonexistent/python3: No such file"), std::string::npos);
  EXPECT_NE(process.status().message().find("/bin/false: "), std::string::npos);
}

TEST(JinjaProcess, LargeTextsPassInBothDirections) {
  const std::string large(8 << 20, 'x');
  EXPECT_EQ(RenderOnce("{{ x }}", {{"x", large}}).value(), large);
}

TEST(JinjaProcess, ManyThreadsGetTheirOwnText) {
  const auto process = StartOrDie("{{ x * 100 }}");
  std::atomic<int> wrong = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 50; ++i) {
        const std::string letter(1, static_cast<char>('a' + t));
        const auto text = process->Render("default", {{"x", letter}}, "");
        if (!text.ok() || *text != std::string(100, letter[0])) ++wrong;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(wrong, 0);
}

TEST(JinjaProcess, MarksPassTojsonUnescaped) {
  const auto process = StartOrDie("{{ x | tojson(ensure_ascii=True) }}");
  EXPECT_EQ(process->Render("default", {{"x", "\U00101234\u00E9"}}, "\U00101234").value(), "\"\U00101234\\u00e9\"");
}

}  // namespace
}  // namespace rt
