// The command line of tidemill bench.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "cli/engine_flags.h"
#include "tidemill/options.h"

namespace tidemill::cli {

enum class BenchMode : unsigned {
  kWorkload = 1,
  kPrefill = 2,
  kDecode = 4,
  kHost = 8,
  kCurve = 16,    // simulated device
  kConvert = 32,  // recorded data
};

struct BenchOptions {
  // ---- the engine's
  EngineFlags engine;  // context 0: what the requests need
  bool chunk_given = false;
  double alias_gib = 0;  // of random weights instead of the model's own; 0: off
  int64_t fill_context = 0;
  int64_t sequences = 0;  // 0: what the cells need
  int64_t pool_blocks = 0;
  double step_ms = 0;
  std::string verification = "keyed";
  bool no_prefix_cache = false;
  std::vector<std::string> drafts;  // empty: off; of a curve, all that are compared

  // ---- what is measured
  std::string workload = "synthetic";
  std::string sweep;  // prefill, decode
  bool host = false;
  std::string curve;
  std::string convert;
  double acceptance = -1;
  bool check = false;

  int64_t requests = 32;
  std::string prompt = "fixed:128";
  std::string output = "fixed:32";
  double shared_prefix = 0;
  double temperature = 0;
  uint64_t seed = 0;
  std::vector<int64_t> concurrency;  // empty: 8; of a curve 1 to 96
  std::vector<double> rates;         // not empty: an open loop
  std::vector<int64_t> prompts = {128, 512, 1024};
  std::vector<int64_t> chunks = {512};
  std::vector<int64_t> contexts = {128, 1024};
  std::vector<int64_t> batches = {1, 4, 8};
  std::vector<int64_t> running = {1, 64, 512};
  int64_t decode_tokens = 32;
  int64_t repeats = 0;  // 0: 1 of a workload, 3 of all else
  int64_t warmups = 1;

  // ---- what is shown
  std::string records;
  std::string pareto;
  bool gaps = false;
  bool floor = false;
  bool json = false;

  BenchMode mode() const;
  // Of what EngineFlags does not have. Drafts and sizes are the cells' to choose.
  Options engine_options() const;
  int64_t alias_bytes() const { return static_cast<int64_t>(alias_gib * (1 << 30)); }

  void add_to(CLI::App& command);
  // What CLI11 cannot see: flags that have no effect in the chosen mode, pairs, policies. After
  // parsing. Errors: kInvalidArgument, kConflictingOptions; both name the flags.
  Status check_flags(const CLI::App& command);
};

}  // namespace tidemill::cli
