// `runtime serve` of a build without the HTTP server (RT_BUILD_SERVER=OFF).
#include "runtime/cli/serve_command.h"

namespace rt {

void AddServeCommand(CLI::App& app, ExitCode* exit_code) {
  CLI::App* command = app.add_subcommand("serve", "not in this binary: built without the HTTP server");
  command->allow_extras();
  command->callback([exit_code] {
    *exit_code = Fail(
        ExitCode::kUnavailable,
        {Code::kUnavailable, "serve: this binary was built without the HTTP server (RT_BUILD_SERVER=OFF)"});
  });
}

}  // namespace rt
