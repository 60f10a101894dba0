// Speed of the cuda backend's operations at the shapes of the released model, next to the floor
// that the device sets: the bytes that a call must move over the measured read bandwidth, or its
// operations over the arithmetic rate, whichever takes longer. floor% = floor / time; more than 100
// means served from a cache.
#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <regex>
#include <string>
#include <vector>

#include <CLI/CLI.hpp>

#include "device.h"
#include "ops.h"
#include "ops/backend.h"
#include "timing.h"

namespace tidemill::gpu {
namespace {

struct Flags {
  std::string filter;
  std::string tsv;
  double seconds = 120;
  double bf16_tflops = 792;
  int64_t context = 131072;
  bool plain = false;
};

struct Line {
  std::string op;
  int64_t tokens = 0;
  Times times;
  Work work;
  double floor_us = 0;

  double rate(double amount) const { return amount / times.median_us / 1e3; }  // G/s
  double of_floor() const { return 100 * floor_us / times.median_us; }
};

constexpr int64_t kTokens[] = {1, 8, 32, 64, 128, 512, 2048, 8192};

void print(const Line& line) {
  const double flops = line.work.tensor_flops + line.work.f32_flops;
  fmt::print("{:<14}{:>5}{:>11.1f}{:>10.1f}..{:<10.1f}{:>5.0f}{:>8.1f}{:>10.1f}{:>7.1f}%{:>6}\n",
             line.op, line.tokens, line.times.median_us, line.times.least_us, line.times.p90_us,
             line.rate(line.work.bytes), line.rate(flops) / 1e3, line.floor_us, line.of_floor(),
             line.times.samples);
  std::fflush(stdout);
}

void print_head() {
  fmt::print("{:<14}{:>5}{:>11}{:>10}..{:<10}{:>5}{:>8}{:>10}{:>8}{:>6}\n", "op", "T", "us", "min",
             "p90", "GB/s", "TFLOP/s", "floor us", "floor", "n");
}

bool write_tsv(const std::string& path, const std::vector<Line>& lines) {
  std::FILE* file = std::fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  fmt::print(file, "op\ttokens\tus\tleast_us\tp90_us\tfirst_us\tbytes\tflops\tfloor_us\tsamples\n");
  for (const Line& l : lines) {
    fmt::print(file, "{}\t{}\t{:.3f}\t{:.3f}\t{:.3f}\t{:.0f}\t{:.0f}\t{:.0f}\t{:.3f}\t{}\n", l.op,
               l.tokens, l.times.median_us, l.times.least_us, l.times.p90_us, l.times.first_us,
               l.work.bytes, l.work.tensor_flops + l.work.f32_flops, l.floor_us, l.times.samples);
  }
  return std::fclose(file) == 0;
}

Limits print_limits(double bf16_tflops) {
  const Limits limits = measure_limits();
  fmt::print(
      "read {:.0f} GB/s, copy {:.0f} GB/s (read and written), f32 {:.1f} TFLOP/s (not fused), "
      "bf16 {:.0f} TFLOP/s (given)\n",
      limits.read_bytes_per_second / 1e9, limits.copy_bytes_per_second / 1e9,
      limits.f32_flops_per_second / 1e12, bf16_tflops);
  fmt::print(
      "an empty kernel: {:.2f} us in a stream, {:.2f} us in a graph, {:.2f} us of the host\n",
      limits.stream_launch_us, limits.graph_launch_us, limits.host_launch_us);
  return limits;
}

std::string label(const std::string& op, int64_t tokens) {
  return fmt::format("{}/{}", op, tokens);
}

class Bench {
 public:
  explicit Bench(const Flags& flags) : flags_(flags), filter_(flags.filter) {
    require(cudaStreamCreateWithFlags(&launch_.stream, cudaStreamNonBlocking), "stream");
    launch_.plain = flags.plain;
  }
  ~Bench() { cudaStreamDestroy(launch_.stream); }
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;

  std::vector<Line> run() {
    limits_ = print_limits(flags_.bf16_tflops);
    const std::vector<Case> all = cases(flags_.context);
    for (const Case& c : all) waiting_ += std::ssize(wanted(c));
    print_head();
    for (const Case& c : all) {
      if (!wanted(c).empty()) run(c);
    }
    return lines_;
  }

 private:
  std::vector<int64_t> wanted(const Case& c) const {
    std::vector<int64_t> result;
    for (const int64_t tokens : kTokens) {
      if (tokens <= c.most_tokens && std::regex_search(label(c.name, tokens), filter_)) {
        result.push_back(tokens);
      }
    }
    return result;
  }
  double left() const {
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - start_;
    return flags_.seconds - spent.count();
  }
  double floor_us(const Work& work) const {
    return 1e6 * std::max({work.bytes / limits_.read_bytes_per_second,
                           work.tensor_flops / (flags_.bf16_tflops * 1e12),
                           work.f32_flops / limits_.f32_flops_per_second});
  }

  void run(const Case& c) {
    if (left() <= 0) {
      fmt::print("{:<14} no time left\n", c.name);
      return;
    }
    const auto prepare = c.open();
    double expected = 0;  // seconds of a call, by those before
    for (const int64_t tokens : wanted(c)) {
      const double share = std::max(0.02, left() / static_cast<double>(waiting_--));
      const Line* before = lines_.empty() || lines_.back().op != c.name ? nullptr : &lines_.back();
      if (before != nullptr) {
        expected = before->times.median_us / 1e6 * static_cast<double>(tokens) /
                   static_cast<double>(before->tokens);
      }
      if (left() <= 0 || expected > 2 * share) {
        fmt::print("{:<14}{:>5} left out: no time for calls of about {:.1f} s\n", c.name, tokens,
                   expected);
        continue;
      }
      const Prepared prepared = prepare(tokens);
      Line line{
          .op = c.name,
          .tokens = tokens,
          .times = time_calls(
              launch_.stream, label(c.name, tokens), [&] { prepared.call(launch_); }, 0.8 * share),
          .work = prepared.work,
          .floor_us = floor_us(prepared.work)};
      print(line);
      lines_.push_back(std::move(line));
    }
  }

  const Flags& flags_;
  std::regex filter_;
  std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
  cuda::Launch launch_;
  Limits limits_;
  int64_t waiting_ = 0;  // lines not yet measured
  std::vector<Line> lines_;
};

int main_of(int argc, char** argv) {
  CLI::App app("Operations of the cuda backend at the shapes of the released model");
  Flags flags;
  app.add_option("--filter", flags.filter, "Only those whose op/tokens this expression finds")
      ->type_name("REGEX");
  app.add_option("--seconds", flags.seconds, "For all of it")
      ->check(CLI::Range(1.0, 1e5))
      ->capture_default_str();
  app.add_option("--bf16-tflops", flags.bf16_tflops, "What a bf16 product reaches on this device")
      ->check(CLI::Range(1.0, 1e5))
      ->capture_default_str();
  app.add_option("--context", flags.context, "Tokens of the sequences that attention looks back on")
      ->check(CLI::Range(32768, 1 << 20))
      ->capture_default_str();
  app.add_option("--tsv", flags.tsv, "Write all numbers to this file")->type_name("FILE");
  app.add_flag("--plain", flags.plain, "The plain kernels");
  CLI11_PARSE(app, argc, argv);
  try {
    const std::regex valid(flags.filter);
  } catch (const std::regex_error& error) {
    fmt::print(stderr, "--filter: {}\n", error.what());
    return 2;
  }
  if (const auto backend = make_cuda_backend(); !backend) {
    fmt::print(stderr, "{}\n", backend.error().message);
    return 1;
  }
  flags.context -= flags.context % 128;  // whole pages
  const std::vector<Line> lines = Bench(flags).run();
  if (!flags.tsv.empty() && !write_tsv(flags.tsv, lines)) {
    fmt::print(stderr, "cannot write {}\n", flags.tsv);
    return 1;
  }
  return 0;
}

}  // namespace
}  // namespace tidemill::gpu

int main(int argc, char** argv) { return tidemill::gpu::main_of(argc, argv); }
