// A running server over fakes, for tests.
#pragma once

#include "runtime/server/fake_generation_service.h"
#include "runtime/server/fake_text_service.h"
#include "runtime/server/http_test_client.h"
#include "runtime/server/server.h"

#include <gtest/gtest.h>
#include <spdlog/spdlog.h>

#include <memory>
#include <string>

namespace rt::server {

using Mode = FakeGenerationService::Mode;

class ServerFixture : public ::testing::Test {
 protected:
  ServerFixture() {
    spdlog::set_level(spdlog::level::warn);
    config_.port = 0;
    config_.model_name = "tiny";
    config_.default_sampling.temperature = 0.6f;
    callbacks_.kernels_json = [] { return std::string(R"({"kernels":[]})"); };
    callbacks_.kernel_labels = [] {
      return std::vector<KernelLabels>{{{"op", "gemm"}, {"phase", "decode"}, {"kernel", "k1"}}};
    };
  }

  void StartServer(Mode mode = Mode::kEcho, bool with_text = true) {
    service_ = std::make_unique<FakeGenerationService>(mode);
    server_ = std::make_unique<Server>(config_, service_.get(), with_text ? &text_ : nullptr, callbacks_);
    const Status status = server_->Start();
    ASSERT_TRUE(status.ok()) << status.ToString();
  }

  void TearDown() override {
    if (server_) server_->Stop();
    if (service_ && !IsSkipped()) {
      // Whatever a test did, no sequence may be left behind.
      for (int i = 0; i < 4000 && service_->num_active() > 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      EXPECT_EQ(service_->num_active(), 0u) << "sequences left running after the server stopped";
    }
  }

  uint16_t port() const { return server_->port(); }
  HttpResponse Get(std::string_view target) { return Fetch(port(), "GET", target); }
  HttpResponse Post(std::string_view target, std::string_view body) { return Fetch(port(), "POST", target, body); }

  static GenerationDelta Text(const std::string& text, int32_t num_output_tokens) {
    GenerationDelta delta;
    delta.text = text;
    for (const char c : text) delta.token_ids.push_back(static_cast<unsigned char>(c));
    delta.num_output_tokens = num_output_tokens;
    return delta;
  }
  static GenerationDelta Last(const std::string& text, int32_t num_output_tokens, FinishReason reason) {
    GenerationDelta delta = Text(text, num_output_tokens);
    delta.finish_reason = reason;
    return delta;
  }

  ServerConfig config_;
  ServerCallbacks callbacks_;
  FakeTextService text_;
  std::unique_ptr<FakeGenerationService> service_;
  std::unique_ptr<Server> server_;
};

}  // namespace rt::server
