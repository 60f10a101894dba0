#include <signal.h>

#include <cstdio>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <string_view>

#include <CLI/CLI.hpp>

#include "base/escape.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/output.h"

namespace {

using namespace tidemill;

constexpr int kUsageExit = 2;

const std::map<std::string, LogLevel> kLogLevels = {{"debug", LogLevel::kDebug},
                                                    {"info", LogLevel::kInfo},
                                                    {"warning", LogLevel::kWarning},
                                                    {"error", LogLevel::kError},
                                                    {"off", LogLevel::kOff}};

int report(std::string_view message, int exit_code) {
  fmt::print(stderr, "tidemill: {}\n", escape_control(message));
  return exit_code;
}

// Runs the action and everything that it may throw: the libraries below report a lack of memory so.
int perform(const cli::Action& action) {
  Status status = action();
  if (status) status = cli::flush_stdout();
  if (status) return 0;
  return report(status.error().message, is_usage(status.error().code) ? kUsageExit : 1);
}

int parse_and_perform(int argc, char** argv) {
  CLI::App app{"Inference engine for the DeepSeek-V4.1 model family", "tidemill"};
  app.set_version_flag("--version", TIDEMILL_VERSION);
  app.require_subcommand(1);
  app.failure_message(CLI::FailureMessage::simple);
  app.add_option_function<std::string>(
         "--log", [](const std::string& level) { set_log_level(kLogLevels.at(level)); },
         "What is logged to stderr; debug names each cache hit and miss")
      ->check(CLI::IsMember(kLogLevels))
      ->type_name("debug|info|warning|error|off");
  app.fallthrough();  // also behind the subcommand
  cli::Action action;
  for (const auto add : {cli::add_run, cli::add_chat, cli::add_score, cli::add_encode,
                         cli::add_tokenize, cli::add_draft, cli::add_inspect, cli::add_check,
                         cli::add_bench, cli::add_serve, cli::add_key, cli::add_load}) {
    add(app, action);
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& help) {
    return app.exit(help);
  } catch (const CLI::ParseError& error) {
    return report(fmt::format("{} (tidemill --help)", error.what()), kUsageExit);
  }
  return perform(action);
}

}  // namespace

int main(int argc, char** argv) {
  // A file that grows past the process's limit is then a failed write, reported like a full disk.
  ::signal(SIGXFSZ, SIG_IGN);
  try {
    return parse_and_perform(argc, argv);
  } catch (const std::bad_alloc&) {
    return report("out of memory", 1);
  } catch (const std::exception& error) {
    return report(fmt::format("internal error: {}", error.what()), 1);
  }
}
