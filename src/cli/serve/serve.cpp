// tidemill serve: the HTTP server over an engine.
#include <malloc.h>
#include <signal.h>
#include <unistd.h>

#include <memory>
#include <optional>
#include <utility>

#include "base/clock.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/model_directory.h"
#include "cli/progress.h"
#include "cli/serve/flags.h"
#include "cli/serve/settings.h"
#include "serve/scripted_engine.h"
#include "text/tokenizer.h"

namespace tidemill::cli {
namespace {

constexpr int kStoppedExit = 130;

// SIGINT and SIGTERM as values. Threads that are started while it exists do not see the signals;
// wait() gets them.
class StopSignals {
 public:
  StopSignals() {
    ::sigemptyset(&signals_);
    ::sigaddset(&signals_, SIGINT);
    ::sigaddset(&signals_, SIGTERM);
    ::pthread_sigmask(SIG_BLOCK, &signals_, &before_);
  }
  ~StopSignals() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // True: one came.
  bool wait(std::chrono::milliseconds most) const {
    const timespec time = {.tv_sec = most.count() / 1000,
                           .tv_nsec = most.count() % 1000 * 1'000'000};
    return ::sigtimedwait(&signals_, nullptr, &time) > 0;
  }

 private:
  sigset_t signals_;
  sigset_t before_;
};

// The memory of large bodies goes back to the system with them. By itself the allocator would keep
// ever larger blocks for later ones.
void return_large_blocks() {
  ::mallopt(M_MMAP_THRESHOLD, 256 << 10);
  ::mallopt(M_TRIM_THRESHOLD, 1 << 20);
}

struct Loaded {
  std::unique_ptr<Tokenizer> tokenizer;
  std::unique_ptr<ServedEngine> engine;
};

Result<Loaded> load(const ServeFlags& flags, const std::filesystem::path& directory,
                    const StopSignals& signals) {
  Loaded loaded;
  TRY(Tokenizer tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  loaded.tokenizer = std::make_unique<Tokenizer>(std::move(tokenizer));
  if (flags.scripted_ms >= 0) {
    ScriptedOptions scripted{.token_ms = flags.scripted_ms};
    if (flags.engine.context > 0) scripted.context = flags.engine.context;
    scripted.most_requests = flags.engine.max_waiting;
    loaded.engine = std::make_unique<ScriptedEngine>(*loaded.tokenizer, scripted);
    return loaded;
  }
  Options options = flags.engine;
  options.model = directory;
  options.prefix_cache = flags.prefix_caching;
  ProgressBar bar("loading");
  const auto progress = [&](double fraction) {
    bar.update(fraction);
    // Nothing has begun that would have to end in order.
    if (signals.wait(std::chrono::milliseconds(0))) ::_exit(kStoppedExit);
  };
  TRY(auto engine, Engine::open(options, progress));
  loaded.engine = std::make_unique<LoadedEngine>(std::move(engine));
  return loaded;
}

std::string url_of(const ServeFlags& flags, uint16_t port) {
  const std::string& host = flags.server.http.host;
  const bool all = host == "0.0.0.0" || host == "::";
  const bool is_v6 = host.find(':') != std::string::npos;
  return fmt::format("{}://{}:{}", flags.server.http.tls_certificate.empty() ? "http" : "https",
                     all     ? "127.0.0.1"
                     : is_v6 ? fmt::format("[{}]", host)
                             : host,
                     port);
}

void greet(const ServeFlags& flags, const Server& server, const std::string& model,
           double seconds) {
  const std::string url = url_of(flags, server.port());
  fmt::print(stderr,
             "tidemill: {} is served at {} (ready in {:.1f} s)\n"
             "  clients   base URL {}/v1   (Anthropic's: {})\n"
             "  status    {}/\n"
             "  try       curl {}/v1/chat/completions {}-d '{{\"messages\": [{{\"role\": "
             "\"user\", \"content\": \"Hello\"}}]}}'\n",
             model, url, seconds, url, url, url, url,
             flags.api_key.empty() ? "" : "-H \"Authorization: Bearer $KEY\" ");
}

// Until a signal comes; then the answers in work have until the deadline, or the next signal.
void run(Server& server, const StopSignals& signals, double drain_timeout_s) {
  while (!signals.wait(std::chrono::milliseconds(1000))) {
  }
  server.drain();
  fmt::print(stderr, "tidemill: draining: {} answers have {} s; a second signal cuts them off\n",
             server.service().answers.load(), drain_timeout_s);
  const Deadline deadline =
      Deadline::after(std::chrono::milliseconds(static_cast<int64_t>(1000 * drain_timeout_s)));
  while (server.service().answers > 0 && !deadline.expired()) {
    if (signals.wait(std::chrono::milliseconds(20))) break;
  }
  const int64_t left = server.stop(Deadline::after(std::chrono::nanoseconds(0)));
  if (left > 0) fmt::print(stderr, "tidemill: {} answers were cut off\n", left);
}

Status serve(ServeFlags& flags, CLI::App& command) {
  TRY(const Settings settings, Settings::apply(command, flags.config));
  // First, so that a key in the place of its file's name is not printed.
  TRY(KeyRing keys, flags.keys());
  fmt::print(stderr, "tidemill: options\n{}", settings.describe(command));
  if (flags.server.service.log_bodies && log_level() > LogLevel::kInfo) {
    set_log_level(LogLevel::kInfo);
  }
  TRY(const std::filesystem::path directory, find_model(flags.model));

  return_large_blocks();
  const Clock::time_point begin = Clock::now();
  const StopSignals signals;
  TRY(const Loaded loaded, load(flags, directory, signals));
  ServerOptions options = flags.server_options(directory, loaded.engine->info().defaults);
  const std::string model = options.service.model_names.front();
  TRY(auto server,
      Server::start(std::move(options), std::move(keys), *loaded.engine, *loaded.tokenizer));
  greet(flags, *server, model, seconds_since(begin));
  if (flags.api_key.empty() && !flags.is_local()) {
    log_warning("serve: whoever reaches {} may use this server (--api-key)",
                flags.server.http.host);
  }
  run(*server, signals, flags.drain_timeout_s);
  return {};
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "serve",
      "OpenAI-, Anthropic- and DeepSeek-compatible HTTP server (no flags: the bundled "
      "model on 127.0.0.1:8000)");
  const auto flags = std::make_shared<ServeFlags>();
  flags->add_to(*command);
  command->callback(
      [&action, flags, command] { action = [flags, command] { return serve(*flags, *command); }; });
}

}  // namespace tidemill::cli
