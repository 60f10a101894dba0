// Options from three places: the command line, then the environment, then a TOML file. What an
// earlier one says counts.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/result.h"

namespace tidemill::cli {

// The option --max-num-seqs is TIDEMILL_MAX_NUM_SEQS in the environment and max-num-seqs in the
// file. A list is an array in the file and separated by commas in the environment.
class Settings {
 public:
  // Fills in what the command line left open. `config`: "" for no file. Errors: kFileNotFound,
  // kFileRead; kInvalidArgument with the place (variable, or file and line), the name and what was
  // expected; a key of the file that is no option.
  static Result<Settings> apply(CLI::App& command, const std::filesystem::path& config);

  // Every option with its value and where it came from, one a line, for the operator.
  std::string describe(const CLI::App& command) const;

 private:
  std::map<std::string, std::string> sources_;  // by option name
};

}  // namespace tidemill::cli
