#include "model/model.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <utility>

#include "base/log.h"
#include "base/mapped_file.h"
#include "model/aliased_checkpoint.h"
#include "model/bind_weights.h"
#include "model/read_weights.h"
#include "text/engram_token_map.h"

namespace tidemill {

namespace {

static_assert(std::endian::native == std::endian::little, "weights are read as they are stored");

// Compressed id of each token id: int32, little endian.
Result<std::vector<int32_t>> read_token_map(const MappedFile& file, const Config& config) {
  const auto bytes = file.bytes();
  const auto expected = static_cast<size_t>(config.vocab_size) * sizeof(int32_t);
  if (bytes.size() != expected) {
    return fail(ErrorCode::kEngramMap,
                "{} has {} bytes; vocab_size = {} asks for {}: remove the file to derive the map",
                file.path().string(), bytes.size(), config.vocab_size, expected);
  }
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  std::memcpy(map.data(), bytes.data(), bytes.size());
  return map;
}

Result<std::vector<int32_t>> find_token_map(const std::filesystem::path& directory,
                                            const Config& config, const Tokenizer& tokenizer) {
  if (config.engram_layer_ids.empty()) return std::vector<int32_t>{};
  auto file = MappedFile::open(directory / "engram_token_map.i32");
  if (file) return read_token_map(*file, config);
  if (file.error().code != ErrorCode::kFileNotFound) return tl::unexpected(file.error());
  return engram_token_map(tokenizer).ids;
}

// For weights that mean nothing: every compressed id occurs, whatever the tokenizer.
Result<std::vector<int32_t>> any_token_map(const Config& config) {
  std::vector<int32_t> map(static_cast<size_t>(config.vocab_size));
  const int64_t ids = std::max<int64_t>(config.engram_compressed_vocab_size, 1);
  for (size_t i = 0; i < map.size(); ++i) {
    map[i] = static_cast<int32_t>(static_cast<int64_t>(i) % ids);
  }
  return map;
}

void warn_of_unexpected(const std::vector<std::string>& tensors) {
  if (tensors.empty()) return;
  constexpr size_t kNamed = 3;
  std::string names;
  for (size_t i = 0; i < std::min(kNamed, tensors.size()); ++i) {
    names += (i == 0 ? "" : ", ") + tensors[i];
  }
  log_warning("{} tensors of the checkpoint are not used: {}{}", tensors.size(), names,
              tensors.size() > kNamed ? ", ..." : "");
}

// Tensors that a WeightPager reads when they are wanted.
bool may_stay_in_file(std::string_view name) {
  return name.starts_with("layers.") &&
         (name.find(".ffn.experts.") != name.npos || name.find(".engram.embed.") != name.npos);
}

// Touching more than the memory holds would push out what was touched before.
bool fits_memory(int64_t bytes) {
  const auto memory = static_cast<int64_t>(::sysconf(_SC_PHYS_PAGES)) * ::sysconf(_SC_PAGESIZE);
  if (bytes <= memory) return true;
  log_warning("the checkpoint's {} bytes exceed the memory's {}: pages are read when needed", bytes,
              memory);
  return false;
}

// The checkpoint in huge pages; nothing if it is to stay mapped.
Result<std::optional<Checkpoint>> in_huge_pages(const Checkpoint& mapped,
                                                const LoadOptions& options) {
  const bool automatic = options.huge_pages == HugePages::kAuto;
  if (options.huge_pages == HugePages::kOff ||
      (automatic &&
       (options.memory_bytes > 0 || !why_mapped(mapped.file_bytes(), options.nodes).empty()))) {
    return std::nullopt;
  }
  auto resident = resident_checkpoint(mapped, options.progress, options.nodes);
  if (!resident && automatic && resident.error().code == ErrorCode::kOutOfMemory) {
    log_info("{}: the weights stay mapped", resident.error().message);
    return std::nullopt;
  }
  return resident;
}

}  // namespace

Result<std::unique_ptr<Model>> Model::load(const std::filesystem::path& directory,
                                           const LoadOptions& options) {
  if (options.huge_pages == HugePages::kOn && options.memory_bytes > 0) {
    return fail(ErrorCode::kConflictingOptions,
                "huge_pages = on reads all weights into memory, and memory_bytes leaves some in "
                "their files; give one of them");
  }
  auto model = std::unique_ptr<Model>(new Model());
  TRY(model->config_, Config::load(directory));
  const Config& config = model->config_;
  TRY(model->generation_, GenerationConfig::load(directory));
  if (model->generation_.eos_token_ids.empty()) {
    model->generation_.eos_token_ids = {config.eos_token_id};
  }
  TRY(model->topology_, Topology::build(config));

  TRY(auto tokenizer, Tokenizer::load(directory / "tokenizer.json"));
  if (tokenizer.size() > config.vocab_size) {
    return fail(ErrorCode::kTokenizer, "tokenizer.json has ids up to {}, but vocab_size is {}",
                tokenizer.size() - 1, config.vocab_size);
  }
  model->tokenizer_ = std::make_unique<Tokenizer>(std::move(tokenizer));
  const bool aliased = options.alias_bytes > 0;
  TRY(auto token_map,
      aliased ? any_token_map(config) : find_token_map(directory, config, *model->tokenizer_));
  TRY(model->engram_, EngramHash::build(config, std::move(token_map)));

  TRY(model->checkpoint_, aliased ? aliased_checkpoint(config, model->topology_,
                                                       options.alias_bytes, options.alias_period)
                                  : Checkpoint::open(directory));
  TRY(auto bound, bind_weights(model->checkpoint_, config, model->topology_));
  warn_of_unexpected(bound.unexpected);
  // Only now, so that weights of another shape than configured are not waited for.
  std::optional<Checkpoint> resident;
  if (!aliased) {
    TRY(resident, in_huge_pages(model->checkpoint_, options));
  }
  if (resident) {
    model->checkpoint_ = *std::move(resident);
    TRY(bound, bind_weights(model->checkpoint_, config, model->topology_));
  }
  model->weights_ = std::move(bound.weights);
  model->aligned_ = std::move(bound.aligned);

  if (aliased) return model;
  if (resident) {  // what is left is to check the scales
    CHECK_OK(read_weights(model->checkpoint_, [](std::string_view) { return false; }, {}));
    return model;
  }
  const bool fits = options.memory_bytes > 0
                        ? model->checkpoint_.file_bytes() <= options.memory_bytes
                        : fits_memory(model->checkpoint_.file_bytes());
  const auto wanted = [&](std::string_view name) {
    return options.prefault && (fits || (options.memory_bytes > 0 && !may_stay_in_file(name)));
  };
  CHECK_OK(read_weights(model->checkpoint_, wanted, options.progress));
  return model;
}

}  // namespace tidemill
