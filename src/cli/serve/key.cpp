// tidemill key: a new API key and its entry for the key file of tidemill serve.
#include <memory>
#include <string>

#include "cli/command.h"
#include "cli/output.h"
#include "serve/access/keys.h"

namespace tidemill::cli {
namespace {

// The entry goes to stdout, to be appended to the file; the key, which is nowhere else, to stderr.
Status make_key(const std::string& name) {
  TRY(const std::string key, new_key());
  const std::string entry = key_entry(name, key);
  CHECK_OK(KeyRing::parse(entry, "NAME"));
  fmt::print(stderr, "tidemill: the key of {}, shown once: {}\n", name, key);
  return write_stdout(entry);
}

}  // namespace

void add_key(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "key",
      "Make an API key: its entry for the key file goes to stdout (>> keys.toml), the key "
      "itself to stderr");
  const auto name = std::make_shared<std::string>();
  command->add_option("NAME", *name, "Whose it is, for logs and usage")->required();
  command->callback([&action, name] { action = [name] { return make_key(*name); }; });
}

}  // namespace tidemill::cli
