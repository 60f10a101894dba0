#include "observe/engine_metrics.h"

#include <fmt/core.h>

#include <numeric>

namespace tidemill {
namespace {

double seconds(double milliseconds) { return milliseconds / 1000; }

int64_t sum(const std::vector<int64_t>& counts) {
  return std::accumulate(counts.begin(), counts.end(), int64_t{0});
}

void by_position(PrometheusText& text, std::string_view name, std::string_view help,
                 const std::vector<int64_t>& counts) {
  text.family(name, "counter", help);
  for (size_t i = 0; i < counts.size(); ++i) {
    text.sample(counts[i], {{"position", fmt::format("{}", i)}});
  }
}

void write_work(PrometheusText& text, const Stats& stats) {
  text.gauge("vllm:num_requests_running", "Choices that take part in steps.", stats.running);
  text.gauge("vllm:num_requests_waiting", "Choices that wait for their first step, or their next.",
             stats.waiting);
  text.counter("vllm:num_preemptions_total", "Choices that had to make room for others.",
               stats.preemptions);
  text.counter("tidemill:preemptions_to_host_total",
               "Preemptions that kept their state in host memory.", stats.suspends);
  text.gauge("tidemill:suspended_bytes", "Host memory of preempted state.", stats.suspended_bytes);
  text.counter("tidemill:choices_submitted_total", "Choices that the engine accepted.",
               stats.submitted);
  text.counter("tidemill:choices_finished_total", "Choices that have ended, in any way.",
               stats.finished);
  text.counter("tidemill:steps_total", "Steps of the engine.", stats.steps);
  text.counter("tidemill:computed_prefill_tokens_total",
               "Prompt tokens computed: not found in the cache, or computed again.",
               stats.prefill_tokens);
  text.counter("tidemill:computed_decode_rows_total",
               "Rows computed to decode: one per choice and step, and one per draft.",
               stats.decode_rows);
  text.counter("tidemill:computed_output_tokens_total",
               "Output tokens of the engine, also of requests that are still at work.",
               stats.output_tokens);
}

void write_time(PrometheusText& text, const Stats& stats) {
  text.counter("tidemill:device_busy_seconds_total", "Time the device computed.",
               seconds(stats.device_busy_ms));
  text.counter("tidemill:device_idle_seconds_total",
               "Time the device had nothing to do while requests were running.",
               seconds(stats.device_idle_ms));
  text.counter("tidemill:host_plan_seconds_total", "Host time to plan and launch steps.",
               seconds(stats.plan_ms));
  text.counter("tidemill:host_commit_seconds_total", "Host time to take results in.",
               seconds(stats.commit_ms));
  text.counter("tidemill:host_exposed_seconds_total",
               "Of the host's time: while the device had nothing to do.",
               seconds(stats.exposed_ms));
  text.counter("tidemill:late_steps_total", "Steps that the device had to wait for.",
               stats.late_steps);
}

void write_memory(PrometheusText& text, const Stats& stats) {
  const int64_t used = stats.pool_blocks - stats.free_blocks;
  text.gauge("vllm:kv_cache_usage_perc", "Share of the pool's blocks in use, 0 to 1.",
             stats.pool_blocks > 0
                 ? static_cast<double>(used) / static_cast<double>(stats.pool_blocks)
                 : 0.0);
  text.gauge("tidemill:pool_blocks_used", "Blocks of the pool in use.", used);
  text.gauge("tidemill:pool_blocks_free", "Blocks of the pool that are free.", stats.free_blocks);
  text.gauge("tidemill:slots_used", "Places for running sequences in use.",
             stats.slots - stats.free_slots);
  text.gauge("tidemill:slots_free", "Places for running sequences that are free.",
             stats.free_slots);
  text.gauge("tidemill:window_bytes", "Memory of cached attention windows.", stats.window_bytes);
}

void write_prefix_cache(PrometheusText& text, const Stats& stats) {
  text.counter("vllm:prefix_cache_queries_total", "Prompt tokens looked up in the cache.",
               stats.cache_asked_tokens);
  text.counter("vllm:prefix_cache_hits_total", "Prompt tokens found in the cache.",
               stats.cache_hit_tokens);
  text.counter("tidemill:prefix_cache_lookups_total", "Prompts looked up in the cache.",
               stats.cache_lookups);
  text.counter("tidemill:prefix_cache_lookup_hits_total", "Prompts of which the cache held a part.",
               stats.cache_hits);
  text.counter("tidemill:prefix_cache_replays_total",
               "Hits that computed a window again from cached blocks.", stats.cache_replays);
  text.family("tidemill:prefix_cache_misses_total", "counter",
              "Prompts of which no more was found, by reason.");
  for (const auto& [reason, count] : stats.cache_misses) text.sample(count, {{"reason", reason}});
  text.gauge("tidemill:prefix_cache_blocks", "Blocks that hold cached state.", stats.cache_blocks);
  text.counter("tidemill:prefix_cache_evicted_blocks_total", "Cached blocks that were given up.",
               stats.cache_evicted_blocks);
}

void write_drafts(PrometheusText& text, const Stats& stats) {
  text.counter("vllm:spec_decode_num_drafts_total", "Drafts: steps of a choice that verified some.",
               stats.drafted.empty() ? 0 : stats.drafted.front());
  text.counter("vllm:spec_decode_num_draft_tokens_total", "Draft tokens verified.",
               sum(stats.drafted));
  text.counter("vllm:spec_decode_num_accepted_tokens_total", "Draft tokens accepted.",
               sum(stats.accepted));
  by_position(text, "vllm:spec_decode_num_accepted_tokens_per_pos_total",
              "Draft tokens accepted, by position in the draft.", stats.accepted);
  by_position(text, "tidemill:spec_decode_num_draft_tokens_per_pos_total",
              "Draft tokens verified, by position in the draft.", stats.drafted);
}

void write_grammars(PrometheusText& text, const Stats& stats) {
  text.gauge("tidemill:grammar_cache_entries", "Compiled grammars kept.", stats.grammar_entries);
  text.gauge("tidemill:grammar_cache_bytes", "Memory of compiled grammars.", stats.grammar_bytes);
  text.gauge("tidemill:grammars_compiling", "Grammars that are being compiled.",
             stats.grammars_compiling);
}

}  // namespace

void write_engine_metrics(PrometheusText& text, const Stats& stats) {
  write_work(text, stats);
  write_time(text, stats);
  write_memory(text, stats);
  write_prefix_cache(text, stats);
  write_drafts(text, stats);
  write_grammars(text, stats);
}

}  // namespace tidemill
