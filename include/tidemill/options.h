// How an engine is set up. Every option is checked by Engine::open; options that exclude each other
// are an error that names both.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace tidemill {

struct Options {
  std::filesystem::path model;  // a checkpoint directory as released
  // cpu | cpu-avx2 | cpu-avx512 | cpu-avx512bf16 | cpu-amx | cuda | cuda-eager | cuda-plain |
  // reference | reference-tiles
  std::string backend = "cpu";
  int threads = 0;  // 0: what affinity and cgroup quota allow

  // For measurements: the directory has no weights, only config.json and a tokenizer, and so many
  // bytes of random ones stand for them, each layer with its own traffic. 0: off.
  int64_t alias_bytes = 0;
  // For measurements: so many tokens of every prompt (whole blocks of 128; the last token excepted)
  // count as computed, and random rows lie in their place. They are `cached` in Usage. Not with
  // prefix_cache or replay_keep. 0: off.
  int64_t fill_context = 0;

  // ---- memory
  // For weights; 0: all of them, as far as the machine has it. With less than they take, routed
  // experts and Engram tables stay in their files and the experts wanted most are kept in memory:
  // the same answers, slower.
  int64_t memory_bytes = 0;
  // "on": weights are read into memory of their own, in huge pages, which is read faster; "off":
  // they are mapped, start at once and share the system's file cache; "auto": on where the system
  // offers huge pages and the weights have 256 MiB to half of the available memory. Without
  // memory_bytes only.
  std::string huge_pages = "auto";
  int64_t context = 0;  // tokens of one request, prompt and answer; 0: the model's limit
  // Requests that are computed at a time; 0: 16, on a GPU 64, or as many as a given max_step_tokens
  // has room for.
  int64_t sequences = 0;
  // Bytes for all state (blocks, slots, window snapshots); 0: a whole context for each sequence,
  // but no more than half of the machine's memory.
  int64_t state_bytes = 0;
  int64_t pool_blocks = 0;  // of 128 tokens; 0: by state_bytes
  // Host memory for the state of preempted requests; 0: they are computed again.
  int64_t suspend_bytes = 0;

  // ---- steps
  // Tokens of one step; 0: 512, on a GPU 8192 (fewer where memory is short), or what all sequences need (one each, and 32 for
  // prefill).
  int64_t max_step_tokens = 0;
  double step_ms = 0;  // the time a step should take, prefill giving way; 0: no limit
  // Drafts per step: "off", "fixed:N", "dynamic" (how many from the results of two steps before,
  // which from those of the last), "dynamic-lagged" (both from two steps before),
  // "dynamic-early-stop" (both from the last step; the loop then waits for it).
  std::string drafts = "off";
  // "keyed": a draft stands if it equals the target's own draw; tokens are those without drafts.
  // "rejection": accepts more; the same distribution, other tokens.
  std::string verification = "keyed";
  // Of the drafter's confidence head: one, or one for each draft position; empty: the checkpoint's
  // (dspark_confidence_temperatures of generation_config.json), 1 where it names none.
  std::vector<float> confidence_temperatures = {};

  // ---- reuse
  bool prefix_cache = true;
  double window_lifetime_s = 600;  // of window snapshots without use
  // Approximations, both off by default. The decoder layers see only the last `replay_keep` tokens
  // of a prompt (0: all); after a hit without windows the last 128 tokens of it run through the
  // encoder again (needs replay_keep).
  int64_t replay_keep = 0;
  bool encoder_replay = false;

  // ---- queue
  int64_t max_waiting = 4096;  // requests
  int64_t max_tenant_waiting = 4096;

  // ---- structured output
  int64_t grammar_cache_bytes = int64_t{256} << 20;
  int64_t grammar_source_bytes = int64_t{1} << 20;
  int64_t grammar_depth = 64;
  int64_t grammar_compile_ms = 10000;
  int grammar_threads = 1;

  // Steps run on a thread of the engine's own. False: the caller calls Engine::step().
  bool own_thread = true;
};

}  // namespace tidemill
