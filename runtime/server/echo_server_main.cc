// A server over the echoing fake engine, for clients that are other programs. Prints "port N", serves until standard input ends.
#include "runtime/server/fake_generation_service.h"
#include "runtime/server/fake_text_service.h"
#include "runtime/server/server.h"

#include <cstdio>

int main() {
  using namespace rt::server;
  FakeGenerationService service(FakeGenerationService::Mode::kEcho);
  FakeTextService text;
  ServerConfig config;
  config.port = 0;
  config.model_name = "tiny";
  Server server(config, &service, &text, {});
  if (const rt::Status status = server.Start(); !status.ok()) {
    std::fprintf(stderr, "%s\n", status.ToString().c_str());
    return 1;
  }
  std::printf("port %d\n", server.port());
  std::fflush(stdout);
  while (std::getchar() != EOF) {
  }
  return 0;
}
