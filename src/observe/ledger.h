// Who used how much: sums per client, for quotas and bills, that survive a restart.
//
// The file has one JSON object per request and line, appended in one write. A crash of the program
// loses nothing that was added; a crash of the machine the last seconds. A line that was cut short
// is skipped when the file is read again, with a warning; the file is never rewritten, so it may be
// rotated only while no server runs (totals then start anew). No prompt or answer is in it.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/file_descriptor.h"
#include "base/result.h"
#include "observe/outcomes.h"
#include "observe/request_record.h"

namespace tidemill {

struct UsageTotals {
  int64_t requests = 0;
  std::array<int64_t, kOutcomes.size()> by_outcome{};  // in the order of kOutcomes
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;  // of the prompt
  int64_t output_tokens = 0;
  int64_t reasoning_tokens = 0;  // of the output

  int64_t tokens() const { return prompt_tokens + output_tokens; }
};

// Any thread.
class UsageLedger {
 public:
  // Clients beyond it share the entry "other".
  static constexpr size_t kMaxClients = 8192;

  // In memory only.
  UsageLedger() = default;
  // Reads what is in the file and appends to it; makes it (mode 0600) if there is none. Errors
  // kFileRead, kFileWrite: not readable or writable, no regular file, or in use by another process.
  static Result<std::unique_ptr<UsageLedger>> open(const std::filesystem::path& file);
  ~UsageLedger();
  UsageLedger(const UsageLedger&) = delete;
  UsageLedger& operator=(const UsageLedger&) = delete;

  // Counts the record and writes its line. A write that fails (a full disk) is counted, and logged
  // the first time; the totals in memory go on. Does not wait for the disk.
  // A record of nobody (reason auth) is counted only: otherwise strangers could fill the disk.
  void add(const RequestRecord& record);

  // Of a client that was never seen: zeros.
  UsageTotals of(std::string_view client) const;
  // By name.
  std::vector<std::pair<std::string, UsageTotals>> all() const;

  int64_t write_errors() const;   // lines that the file lacks
  int64_t skipped_lines() const;  // that open() could not read

 private:
  Status read(int fd);
  bool read_line(std::string_view line);
  UsageTotals& entry(std::string_view client);
  bool append(std::string_view bytes);

  mutable std::mutex mutex_;
  std::map<std::string, UsageTotals, std::less<>> clients_;
  std::string path_;
  FileDescriptor file_;   // not valid: in memory only
  bool is_torn_ = false;  // the file ends within a line
  int64_t write_errors_ = 0;
  int64_t skipped_lines_ = 0;
};

}  // namespace tidemill
