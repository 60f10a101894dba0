#include "cli/constraint_flags.h"

#include "cli/input.h"

namespace tidemill::cli {

void ConstraintFlags::add_to(CLI::App& command) {
  const std::vector<CLI::Option*> constraints = {
      command.add_flag("--json-object", json_object, "The answer is a JSON object"),
      command
          .add_option("--json-schema", schema_file, "The answer follows the JSON Schema in FILE")
          ->type_name("FILE"),
      command.add_option("--regex", regex, "The whole answer matches the regular expression"),
      command
          .add_option("--ebnf", ebnf_file,
                      "The answer follows the grammar in FILE, from its rule root")
          ->type_name("FILE"),
  };
  for (size_t i = 0; i < constraints.size(); ++i) {
    for (size_t k = 0; k < i; ++k) constraints[i]->excludes(constraints[k]);
  }
  command
      .add_option("--stop", stop,
                  "The answer ends before this text; may be given " +
                      std::to_string(Request::kMaxStopStrings) + " times")
      ->allow_extra_args(false)
      ->check([](const std::string& text) {
        return text.empty() ? "an empty text would end every answer at once" : std::string();
      });
}

Result<std::optional<Constraint>> ConstraintFlags::constraint() const {
  using Kind = Constraint::Kind;
  Constraint constraint;
  if (json_object) {
    constraint.kind = Kind::kJsonObject;
  } else if (!schema_file.empty()) {
    constraint.kind = Kind::kJsonSchema;
    TRY(constraint.text, read_input(schema_file));
  } else if (regex) {
    constraint.kind = Kind::kRegex;
    constraint.text = *regex;
  } else if (!ebnf_file.empty()) {
    constraint.kind = Kind::kEbnf;
    TRY(constraint.text, read_input(ebnf_file));
  } else {
    return std::nullopt;
  }
  return constraint;
}

}  // namespace tidemill::cli
