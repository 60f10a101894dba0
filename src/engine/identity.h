// What cached state of a model depends on besides its tokens.
#pragma once

#include <filesystem>
#include <string>

#include "base/result.h"
#include "model/model.h"

namespace tidemill {

// SHA-256, in hex, over config.json, tokenizer.json (the Engram map comes from it) and, of every
// tensor in the order of names, its name, type, shape and the first and last kDigestSample bytes.
// It tells apart checkpoints that were trained apart, and costs milliseconds whatever their size;
// it is no proof against a forged file. Errors: kFileNotFound, kFileRead.
inline constexpr size_t kDigestSample = 4096;
Result<std::string> checkpoint_digest(const Model& model, const std::filesystem::path& directory);

}  // namespace tidemill
