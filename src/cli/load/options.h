// The command line of tidemill load.
#pragma once

#include <cstdint>
#include <string>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "cli/load/arrivals.h"
#include "cli/load/body.h"
#include "cli/load/client.h"
#include "cli/load/slo.h"

namespace tidemill::cli {

struct LoadOptions {
  // ---- the server
  std::string url = "http://127.0.0.1:8000";
  std::string endpoint = "chat";
  std::string model;  // "": the first that the server lists
  std::string api_key_env;

  // ---- arrivals
  double rate = 2;
  std::string arrivals = "poisson";
  std::string trace;
  int64_t requests = 0;  // 0: no limit, if there is another
  double duration_s = 0;
  int64_t warmup = 0;
  uint64_t seed = 0;
  int64_t connections = 1000;
  double timeout_s = 120;

  // ---- requests
  std::string prompt_tokens = "64:256";
  std::string output_tokens = "16:64";
  double prefix_share = 0;
  int64_t prefix_tokens = 0;
  int64_t prefixes = 1;
  bool ignore_eos = false;
  std::string extra;

  // ---- what is shown
  std::string slo;
  std::string out;
  bool gaps = false;
  bool json = false;

  // What the texts above say. Set by check_flags.
  ServerUrl server;
  PromptShape shape;
  Json extra_fields = Json::object();
  Slo limits;

  ArrivalProcess process() const;
  LoadEndpoint load_endpoint() const;

  void add_to(CLI::App& command);
  // Reads the texts and finds flags that have no effect. After parsing. Errors: kInvalidArgument,
  // kConflictingOptions, each with the flag's name.
  Status check_flags(const CLI::App& command);
};

}  // namespace tidemill::cli
