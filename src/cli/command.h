// The subcommands of `tidemill`. Each file declares its flags on the app; the chosen one leaves in
// `action` what main() then runs. Answers and JSON go to stdout, everything else to stderr.
#pragma once

#include <functional>

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace tidemill::cli {

// An error becomes one line "tidemill: ..." and exit code 2 (usage) or 1.
using Action = std::function<Status()>;

void add_run(CLI::App& app, Action& action);
void add_chat(CLI::App& app, Action& action);
void add_score(CLI::App& app, Action& action);
void add_encode(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_draft(CLI::App& app, Action& action);
void add_inspect(CLI::App& app, Action& action);
void add_check(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);
void add_serve(CLI::App& app, Action& action);
void add_key(CLI::App& app, Action& action);
void add_load(CLI::App& app, Action& action);

}  // namespace tidemill::cli
