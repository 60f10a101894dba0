#include "cli/serve/flags.h"

#include <cstdlib>
#include <system_error>

#include "base/thread_team.h"
#include "cli/engine_flags.h"
#include "cli/model_directory.h"
#include "model/config.h"

namespace tidemill::cli {
namespace {

constexpr int64_t kMebi = int64_t{1} << 20;

// Names under which this machine is reached over the loopback interface.
const std::vector<std::string> kLoopbackHosts = {"localhost", "127.0.0.1", "[::1]"};

void add_engine(ServeFlags& flags, CLI::App& command) {
  const std::string group = "Engine";
  Options& engine = flags.engine;
  command
      .add_option("--model", flags.model,
                  "Checkpoint directory (default: $TIDEMILL_MODEL, or mini)")
      ->group(group);
  add_backend(command, engine.backend)->group(group);
  command.add_option("--threads", engine.threads, "Of the engine (default: the CPUs there are)")
      ->check(CLI::Range(1, ThreadTeam::kMaxThreads))
      ->group(group);
  command
      .add_option("--max-model-len,--context", engine.context,
                  "Tokens of prompt and answer (default: the model's limit)")
      ->check(CLI::Range(int64_t{1}, kMaxContext))
      ->group(group);
  command
      .add_option("--max-num-seqs,--sequences", engine.sequences,
                  "Answers that are computed at a time (default: 16, on a GPU 64)")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->group(group);
  command
      .add_option("--max-num-batched-tokens,--chunk", engine.max_step_tokens,
                  "Tokens of one step (default: 512, on a GPU 8192, or what all sequences need)")
      ->check(CLI::Range(int64_t{1}, int64_t{65536}))
      ->group(group);
  command
      .add_option("--max-waiting", engine.max_waiting,
                  "Requests in the engine's queue; more are answered 503")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--max-waiting-per-key", engine.max_tenant_waiting,
                  "Requests of one key in the engine's queue")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str()
      ->group(group);
  add_memory(command, engine.memory_bytes)->group(group);
  add_huge_pages(command, engine.huge_pages)->group(group);
  command
      .add_option("--state-bytes", engine.state_bytes,
                  "Memory for the state of sequences (default: all can be full, within half of "
                  "the machine's memory)")
      ->check(CLI::NonNegativeNumber)
      ->group(group);
  command
      .add_option("--suspend-bytes", engine.suspend_bytes,
                  "Memory for the state of preempted sequences (0: they are computed again)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
  command.add_option("--step-ms", engine.step_ms, "Time that a step should take (0: no limit)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--drafts", engine.drafts,
                  "off, fixed:N, dynamic, dynamic-lagged or dynamic-early-stop")
      ->capture_default_str()
      ->group(group);
  command.add_option("--verification", engine.verification, "Of drafts: keyed or rejection")
      ->check(CLI::IsMember({"keyed", "rejection"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--replay", engine.replay_keep,
                  "Approximate: decoder layers see only the last tokens of a prompt (0: off)")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str()
      ->group(group);
  command.add_option("--prefix-caching", flags.prefix_caching, "Reuse the state of equal prefixes")
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--scripted", flags.scripted_ms,
                  "No model: prompts say what is answered, a token every MS milliseconds; to "
                  "try clients and to measure the server")
      ->check(CLI::NonNegativeNumber)
      ->type_name("MS")
      ->group(group);
}

void add_http(ServeFlags& flags, CLI::App& command) {
  const std::string group = "HTTP";
  HttpServerOptions& http = flags.server.http;
  command.add_option("--host", http.host, "Address to listen on; 0.0.0.0 and :: are all")
      ->capture_default_str()
      ->group(group);
  command.add_option("--port", http.port, "0: the system chooses")
      ->capture_default_str()
      ->group(group);
  command.add_option("--http-threads", http.threads, "Threads for connections")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->group(group);
  command.add_option("--ssl-certfile", http.tls_certificate, "PEM chain: serves HTTPS only")
      ->group(group);
  command.add_option("--ssl-keyfile", http.tls_key, "PEM key of the certificate")->group(group);
  command.add_option("--max-connections", http.limits.connections, "More are answered 503")
      ->check(CLI::Range(int64_t{1}, int64_t{1000000}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option_function<int64_t>(
          "--max-body-mib", [&http](int64_t mib) { http.limits.body = mib * kMebi; },
          "Body of a request in MiB; more is answered 413")
      ->check(CLI::Range(1, 1024))
      ->default_str("32")
      ->group(group);
  command
      .add_option("--allowed-origins", flags.server.service.origins,
                  "Web pages whose scripts may call this server, e.g. https://app.example")
      ->group(group);
  command
      .add_option("--allow-host", flags.server.service.hosts,
                  "Names in the Host header that are answered (default: on a loopback address "
                  "its names, elsewhere all)")
      ->group(group);
}

void add_service(ServeFlags& flags, CLI::App& command) {
  const std::string group = "Service";
  ServiceOptions& service = flags.server.service;
  command
      .add_option("--api-key", flags.api_key,
                  "A key file (tidemill key), or the name of an environment variable with the "
                  "only key (default: no key is asked for)")
      ->type_name("FILE|ENV")
      ->group(group);
  command
      .add_option("--served-model-name", flags.names,
                  "Names that requests may use; \"*\": any (default: the directory's)")
      ->group(group);
  command
      .add_option("--thinking", flags.thinking,
                  "Of requests that do not say: on, off or auto (on, but for mini)")
      ->check(CLI::IsMember({"auto", "on", "off"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--hosted-sampling", service.policy.hosted_sampling,
                "As the hosted API: thinking draws at temperature 1, other answers at top_p 1")
      ->group(group);
  command
      .add_flag("--refuse-unknown", service.policy.refuse_unknown,
                "Fields of a body that no protocol has are an error")
      ->group(group);
  command
      .add_option("--request-timeout", service.request_timeout_s,
                  "Seconds for an answer, unless X-Request-Timeout says otherwise")
      ->check(CLI::Range(0.001, 86400.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--keep-alive", service.keep_alive_s,
                  "Seconds of silence after which a stream gets a comment")
      ->check(CLI::Range(0.1, 3600.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--drain-timeout", flags.drain_timeout_s,
                  "Seconds that answers have to end after SIGTERM")
      ->check(CLI::Range(0.0, 86400.0))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--work-threads", service.work_threads, "Threads that read and tokenise bodies")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--cache-per-key", service.cache_per_key,
                "Share cached prefixes among requests of one key only")
      ->group(group);
  command
      .add_option("--ledger", service.ledger,
                  "File that the use of every request is added to (totals survive a restart)")
      ->group(group);
  command
      .add_option("--otlp-traces-endpoint", service.otlp_endpoint,
                  "http://HOST:PORT of an OTLP/HTTP collector that gets a trace of each request")
      ->group(group);
  command
      .add_flag("--log-bodies", service.log_bodies,
                "Bodies of requests go to the log (which becomes --log info): prompts are in "
                "them")
      ->group(group);
}

}  // namespace

void ServeFlags::add_to(CLI::App& command) {
  command.add_option("--config", config, "TOML file with these options, without their dashes");
  add_http(*this, command);
  add_service(*this, command);
  add_engine(*this, command);
}

ServerOptions ServeFlags::server_options(const std::filesystem::path& directory,
                                         const SamplingParams& defaults) const {
  ServerOptions options = server;
  ServiceOptions& service = options.service;
  service.model_names = names;
  if (names.empty() || names.front() == "*") {
    const auto canonical = std::filesystem::weakly_canonical(directory);
    service.model_names.insert(service.model_names.begin(), canonical.filename().string());
  }
  service.policy.defaults = defaults;
  service.policy.thinking =
      thinking == "on" || (thinking == "auto" && !is_bundled_model(directory));
  if (service.hosts.empty() && is_local()) {
    service.hosts = kLoopbackHosts;
    service.hosts.push_back(options.http.host);
  }
  return options;
}

bool ServeFlags::is_local() const {
  const std::string& host = server.http.host;
  return host == "localhost" || host == "::1" || host.starts_with("127.");
}

Result<KeyRing> ServeFlags::keys() const {
  if (api_key.empty()) return KeyRing::anonymous();
  std::error_code error;
  if (std::filesystem::exists(api_key, error)) return KeyRing::load(api_key);
  if (const char* value = std::getenv(api_key.c_str()); value != nullptr) {
    return KeyRing::from_plain(value);
  }
  return fail(ErrorCode::kInvalidArgument,
              "--api-key: neither a file nor a variable of the environment has that name (a key "
              "itself would be seen in the list of processes)");
}

}  // namespace tidemill::cli
