// The flags of tidemill serve. Names are vLLM's where the meaning is the same; where this program
// has a name of its own for it, both are known.
#pragma once

#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "serve/access/keys.h"
#include "serve/server.h"
#include "tidemill/options.h"

namespace tidemill::cli {

struct ServeFlags {
  std::string config;
  std::string model;
  Options engine;
  ServerOptions server;

  std::string api_key;
  std::vector<std::string> names;
  std::string thinking = "auto";
  double drain_timeout_s = 30;
  double scripted_ms = -1;  // >= 0: no model computes
  bool prefix_caching = true;

  void add_to(CLI::App& command);

  // What follows from the flags together. `directory`: of the model.
  ServerOptions server_options(const std::filesystem::path& directory,
                               const SamplingParams& defaults) const;
  bool is_local() const;  // reached over the loopback interface only
  // Of --api-key: a key file, or the name of an environment variable that holds the only key.
  Result<KeyRing> keys() const;
};

}  // namespace tidemill::cli
