// What a tier that keeps blocks beyond the pool (host memory, disk, a shared store) has to offer,
// and the form of what it keeps. No tier exists yet; tests run against a fake.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "base/result.h"
#include "state/content_key.h"
#include "state/state_pool.h"

namespace tidemill {

enum class SectionKind : uint32_t {
  kBlock = 1,    // one block of the pool: entries and index keys of all caches
  kWindows = 2,  // the window rows before the end of the block
};

// All state of one content key. It is stored and read as a whole: never entries without their
// index keys.
struct StateRecord {
  struct Section {
    SectionKind kind = SectionKind::kBlock;
    std::vector<std::byte> bytes;

    bool operator==(const Section&) const = default;
  };
  ContentKey key;
  std::vector<Section> sections;

  bool operator==(const StateRecord&) const = default;
};

// Little-endian: magic, version, key, number of sections; per section kind, length and the first
// 16 bytes of its SHA-256; the same digest of all this; then the sections' bytes.
std::vector<std::byte> encode_record(const StateRecord& record);
// Error kFileRead: torn, damaged, or the record of another key. `bytes` may be anything.
Result<StateRecord> decode_record(const ContentKey& key, std::span<const std::byte> bytes);

StateRecord record_of_block(const StatePool& pool, int32_t block, const ContentKey& key);
// Error kFileRead when the record has no block section of this layout's size; the block is
// unchanged then.
Status load_block(const StateRecord& record, const StatePool& pool, int32_t block);

// Keeps records by key. Every answer may be overtaken by eviction: a record that match() promised
// and fetch() does not find is a miss, which the caller recomputes.
class CacheManager {
 public:
  virtual ~CacheManager() = default;

  // How many of the keys, from the first on, have a complete record. Metadata only: fast enough for
  // the thread that plans steps.
  virtual int64_t match(std::span<const ContentKey> keys) const = 0;

  // Starts to read a record, which cannot be evicted until the fetch ends. Error kNoCapacity: too
  // many fetches run.
  using Ticket = int64_t;
  virtual Result<Ticket> fetch(const ContentKey& key) = 0;
  enum class FetchState { kRunning, kReady, kMissing };
  virtual FetchState state(Ticket ticket) = 0;
  // Ends a fetch that is ready: the whole, checked record. Error kFileRead: damaged, a miss.
  virtual Result<StateRecord> take(Ticket ticket) = 0;
  // Ends a fetch in any state; what still arrives for it is dropped. Unknown tickets are ignored.
  virtual void abort(Ticket ticket) = 0;

  // Keeps a record. It can be matched when all of it is stored, and not before. A key that is there
  // already keeps its record. Error kNoCapacity.
  virtual Status commit(const StateRecord& record) = 0;
};

}  // namespace tidemill
