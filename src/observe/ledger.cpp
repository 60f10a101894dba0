#include "observe/ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include <nlohmann/json.hpp>

#include "base/log.h"
#include "observe/utf8_lossy.h"

namespace tidemill {
namespace {

// A record's line is a few hundred bytes; a longer one is no record.
constexpr size_t kMaxLine = size_t{1} << 16;

std::string reason_of(int error) { return std::generic_category().message(error); }

std::string line_of(const RequestRecord& record) {
  const nlohmann::ordered_json line = {
      {"time", record.arrived_unix_s},
      {"id", utf8_lossy(record.id)},
      {"client", utf8_lossy(record.client)},
      {"endpoint", utf8_lossy(record.endpoint)},
      {"model", utf8_lossy(record.model)},
      {"status", record.status},
      {"outcome", utf8_lossy(record.outcome)},
      {"reason", utf8_lossy(record.reason)},
      {"choices", record.choices},
      {"prompt_tokens", record.prompt_tokens},
      {"cached_tokens", record.cached_tokens},
      {"output_tokens", record.output_tokens},
      {"reasoning_tokens", record.reasoning_tokens},
      {"total_ms", record.ended_ms},
  };
  return line.dump() + '\n';
}

void count(UsageTotals& totals, const RequestRecord& record) {
  ++totals.requests;
  ++totals.by_outcome[outcome_index(record.outcome)];
  totals.prompt_tokens += record.prompt_tokens;
  totals.cached_tokens += record.cached_tokens;
  totals.output_tokens += record.output_tokens;
  totals.reasoning_tokens += record.reasoning_tokens;
}

// A count of the file. Beyond the range of any real one: it would spoil the sums.
bool read_count(const nlohmann::json& line, const char* key, int64_t& value) {
  constexpr int64_t kMax = int64_t{1} << 50;
  const auto field = line.find(key);
  if (field == line.end() || !field->is_number_integer()) return false;
  value = field->get<int64_t>();
  return value >= 0 && value <= kMax;
}

bool read_text(const nlohmann::json& line, const char* key, std::string& text) {
  const auto field = line.find(key);
  if (field == line.end() || !field->is_string()) return false;
  text = field->get<std::string>();
  return true;
}

}  // namespace

Result<std::unique_ptr<UsageLedger>> UsageLedger::open(const std::filesystem::path& file) {
  auto ledger = std::make_unique<UsageLedger>();
  ledger->path_ = file.string();
  // O_NONBLOCK: a pipe in the file's place must not block.
  FileDescriptor fd(
      ::open(file.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0600));
  if (!fd.valid()) {
    return fail(ErrorCode::kFileWrite, "{}: cannot be opened to read and append: {}", file.string(),
                reason_of(errno));
  }
  struct stat info = {};
  if (::fstat(fd.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return fail(ErrorCode::kFileRead, "{}: not a regular file", file.string());
  }
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    return fail(ErrorCode::kFileWrite, "{}: already open as the usage ledger of a server",
                file.string());
  }
  CHECK_OK(ledger->read(fd.get()));
  ledger->file_ = std::move(fd);
  return ledger;
}

UsageLedger::~UsageLedger() {
  if (file_.valid()) ::fsync(file_.get());
}

Status UsageLedger::read(int fd) {
  std::string line;  // no more than kMaxLine + 1 bytes of it are kept
  std::string chunk(kMaxLine, '\0');
  int64_t number = 1;
  int64_t first_bad = 0;
  const auto end_line = [&] {
    if (!line.empty() && !read_line(line) && skipped_lines_++ == 0) first_bad = number;
    ++number;
    line.clear();
  };
  for (;;) {
    const ssize_t got = ::read(fd, chunk.data(), chunk.size());
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return fail(ErrorCode::kFileRead, "{}: {}", path_, reason_of(errno));
    if (got == 0) break;
    std::string_view rest(chunk.data(), static_cast<size_t>(got));
    while (!rest.empty()) {
      const size_t end = rest.find('\n');
      const std::string_view piece = rest.substr(0, end);
      line += piece.substr(0, kMaxLine + 1 - std::min(line.size(), kMaxLine + 1));
      if (end == std::string_view::npos) break;
      end_line();
      rest.remove_prefix(end + 1);
    }
  }
  is_torn_ = !line.empty();
  if (is_torn_) end_line();
  if (skipped_lines_ > 0) {
    log_warning("{}: {} lines are no records and were skipped, the first is line {}", path_,
                skipped_lines_, first_bad);
  }
  return {};
}

bool UsageLedger::read_line(std::string_view text) {
  if (text.size() > kMaxLine) return false;
  const auto line = nlohmann::json::parse(text, nullptr, false);
  if (!line.is_object()) return false;
  RequestRecord record;
  const bool is_whole = read_text(line, "client", record.client) &&
                        read_text(line, "outcome", record.outcome) &&
                        read_count(line, "prompt_tokens", record.prompt_tokens) &&
                        read_count(line, "cached_tokens", record.cached_tokens) &&
                        read_count(line, "output_tokens", record.output_tokens) &&
                        read_count(line, "reasoning_tokens", record.reasoning_tokens);
  if (is_whole) count(entry(record.client), record);
  return is_whole;
}

UsageTotals& UsageLedger::entry(std::string_view client) {
  const auto place = clients_.find(client);
  if (place != clients_.end()) return place->second;
  return clients_[clients_.size() < kMaxClients ? std::string(client) : "other"];
}

void UsageLedger::add(const RequestRecord& record) {
  const std::string line = line_of(record);
  const std::lock_guard lock(mutex_);
  count(entry(record.client), record);
  if (!file_.valid() || record.reason == "auth") return;
  // Behind the rest of a torn line a record would be lost with it.
  if (append(is_torn_ ? '\n' + line : line)) return;
  if (write_errors_++ == 0) {
    log_error(
        "{}: cannot be written: {}. Usage is counted in memory; what the file lacks is gone "
        "after a restart. Further errors are only counted",
        path_, reason_of(errno));
  }
}

bool UsageLedger::append(std::string_view bytes) {
  ssize_t wrote = -1;
  do {
    wrote = ::write(file_.get(), bytes.data(), bytes.size());
  } while (wrote < 0 && errno == EINTR);
  if (wrote == static_cast<ssize_t>(bytes.size())) {
    is_torn_ = false;
    return true;
  }
  if (wrote > 0) {
    is_torn_ = true;
    errno = ENOSPC;  // what a short write to a file means
  }
  return false;
}

UsageTotals UsageLedger::of(std::string_view client) const {
  const std::lock_guard lock(mutex_);
  const auto place = clients_.find(client);
  return place == clients_.end() ? UsageTotals{} : place->second;
}

std::vector<std::pair<std::string, UsageTotals>> UsageLedger::all() const {
  const std::lock_guard lock(mutex_);
  return {clients_.begin(), clients_.end()};
}

int64_t UsageLedger::write_errors() const {
  const std::lock_guard lock(mutex_);
  return write_errors_;
}

int64_t UsageLedger::skipped_lines() const {
  const std::lock_guard lock(mutex_);
  return skipped_lines_;
}

}  // namespace tidemill
