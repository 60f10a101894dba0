// Flags of every command that computes: which model, with what.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include <CLI/CLI.hpp>

#include "base/result.h"
#include "engine/model_runner.h"
#include "tidemill/engine.h"

namespace tidemill::cli {

// Flags that `serve` has too, among its own.
CLI::Option* add_backend(CLI::App& command, std::string& backend);
CLI::Option* add_memory(CLI::App& command, int64_t& bytes);
CLI::Option* add_huge_pages(CLI::App& command, std::string& huge_pages);

struct EngineFlags {
  std::string model;                  // empty: find_model decides
  std::string backend = "cpu";        // RunnerOptions::backend
  std::string rounding = "released";  // Rounding::parse
  int threads = 0;
  static constexpr int64_t kChunk = 512;
  int64_t chunk = 0;  // 0: kChunk in load(), in open() what the engine chooses
  int64_t context = 0;
  int64_t replay_keep = 0;
  int64_t memory_bytes = 0;
  std::string huge_pages = "auto";

  void add_to(CLI::App& command);
  // Without --rounding, which an Engine does not have.
  void add_engine_to(CLI::App& command);
  Result<std::filesystem::path> directory() const;

  // Both load with a progress bar on a terminal. Errors: those of find_model and of what is loaded.
  Result<std::unique_ptr<ModelRunner>> load() const;
  // `options`: what these flags do not say.
  Result<std::unique_ptr<Engine>> open(Options options) const;
};

}  // namespace tidemill::cli
