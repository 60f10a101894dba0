#include "state/store.h"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace tidemill {
namespace {

constexpr std::string_view kMagic = "TMSTATE";
constexpr uint8_t kVersion = 1;
constexpr size_t kSectionHeader = 4 + 8 + 16;
constexpr size_t kDigestBytes = 16;
constexpr uint32_t kMaxSections = 16;

void put(std::vector<std::byte>& out, std::span<const std::byte> data) {
  out.insert(out.end(), data.begin(), data.end());
}
template <typename Integer>
void put_number(std::vector<std::byte>& out, Integer value) {
  for (size_t i = 0; i < sizeof(Integer); ++i) {
    out.push_back(static_cast<std::byte>(static_cast<uint64_t>(value) >> (8 * i)));
  }
}
void put_digest(std::vector<std::byte>& out, std::span<const std::byte> data) {
  const Digest digest = sha256(data);  // before `out` grows: data may be out itself
  put(out, std::as_bytes(std::span(digest)).first(kDigestBytes));
}

// Reads forward; past the end everything is empty and `ok` is false.
struct Reader {
  std::span<const std::byte> rest;
  bool ok = true;

  std::span<const std::byte> take(uint64_t bytes) {
    ok = ok && bytes <= rest.size();
    if (!ok) return {};
    const auto data = rest.first(static_cast<size_t>(bytes));
    rest = rest.subspan(static_cast<size_t>(bytes));
    return data;
  }
  template <typename Integer>
  Integer number() {
    uint64_t value = 0;
    const auto data = take(sizeof(Integer));
    for (size_t i = 0; i < data.size(); ++i) value |= static_cast<uint64_t>(data[i]) << (8 * i);
    return static_cast<Integer>(value);
  }
  bool expect(std::span<const std::byte> data) {
    const auto found = take(data.size());
    return ok = ok && std::ranges::equal(found, data);
  }
  bool expect_digest_of(std::span<const std::byte> data) {
    const Digest digest = sha256(data);
    return expect(std::as_bytes(std::span(digest)).first(kDigestBytes));
  }
};

}  // namespace

std::vector<std::byte> encode_record(const StateRecord& record) {
  size_t bytes = kMagic.size() + 1 + record.key.bytes.size() + 4 + kDigestBytes;
  for (const auto& section : record.sections) bytes += kSectionHeader + section.bytes.size();
  const auto magic = std::as_bytes(std::span(kMagic));
  std::vector<std::byte> out(magic.begin(), magic.end());
  out.reserve(bytes);
  put_number(out, kVersion);
  put(out, std::as_bytes(std::span(record.key.bytes)));
  put_number(out, static_cast<uint32_t>(record.sections.size()));
  for (const StateRecord::Section& section : record.sections) {
    put_number(out, static_cast<uint32_t>(section.kind));
    put_number(out, static_cast<uint64_t>(section.bytes.size()));
    put_digest(out, section.bytes);
  }
  put_digest(out, std::span<const std::byte>(out));
  for (const StateRecord::Section& section : record.sections) put(out, section.bytes);
  return out;
}

Result<StateRecord> decode_record(const ContentKey& key, std::span<const std::byte> bytes) {
  const auto damaged = [&](std::string_view what) {
    return fail(ErrorCode::kFileRead, "the record of key {} ({} bytes) {}; it counts as a miss",
                key.hex(), bytes.size(), what);
  };
  Reader reader{bytes};
  if (!reader.expect(std::as_bytes(std::span(kMagic))) || reader.number<uint8_t>() != kVersion) {
    return damaged("is not one of this version");
  }
  if (!reader.expect(std::as_bytes(std::span(key.bytes)))) return damaged("belongs to another key");
  const auto count = reader.number<uint32_t>();
  if (!reader.ok || count > kMaxSections) return damaged("is damaged in its header");
  Reader sections{reader.take(count * kSectionHeader)};
  const size_t header_bytes = bytes.size() - reader.rest.size();
  if (!reader.ok || !reader.expect_digest_of(bytes.first(header_bytes))) {
    return damaged("is damaged in its header");
  }
  StateRecord record{.key = key};
  for (uint32_t i = 0; i < count; ++i) {
    const auto kind = static_cast<SectionKind>(sections.number<uint32_t>());
    const auto data = reader.take(sections.number<uint64_t>());
    if (!reader.ok) return damaged("is cut short");
    if (!sections.expect_digest_of(data)) return damaged("has a damaged section");
    record.sections.push_back({kind, {data.begin(), data.end()}});
  }
  if (!reader.rest.empty()) return damaged("is longer than it says");
  return record;
}

StateRecord record_of_block(const StatePool& pool, int32_t block, const ContentKey& key) {
  return {.key = key, .sections = {{SectionKind::kBlock, pool.read(pool.block(block))}}};
}

Status load_block(const StateRecord& record, const StatePool& pool, int32_t block) {
  const auto to = pool.block(block);
  for (const StateRecord::Section& section : record.sections) {
    if (section.kind != SectionKind::kBlock || section.bytes.size() != to.size()) continue;
    pool.write(to, section.bytes.data());
    return {};
  }
  return fail(ErrorCode::kFileRead, "the record of key {} holds no block of {} bytes",
              record.key.hex(), to.size());
}

}  // namespace tidemill
