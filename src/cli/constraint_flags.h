// Flags for what an answer has to look like, and where it ends.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "tidemill/request.h"

namespace tidemill::cli {

struct ConstraintFlags {
  bool json_object = false;
  std::string schema_file;
  std::optional<std::string> regex;
  std::string ebnf_file;
  std::vector<std::string> stop;

  // The four constraints exclude each other.
  void add_to(CLI::App& command);
  // Reads the file. Errors: those of read_input.
  Result<std::optional<Constraint>> constraint() const;
};

}  // namespace tidemill::cli
