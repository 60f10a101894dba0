// The tokenizers that tests are written against. Included by tests only.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <stdexcept>
#include <string>

#include "text/tokenizer.h"

namespace tidemill {

// Loaded once, never null. A file that cannot be used throws, which fails the running test.
inline const Tokenizer* tokenizer_for_tests(const std::filesystem::path& file,
                                            const std::string& advice = {}) {
  auto loaded = Tokenizer::load(file);
  if (loaded) return new Tokenizer(*std::move(loaded));  // lives until the process ends
  throw std::runtime_error(loaded.error().message + advice);
}

// The public DeepSeek vocabulary with the special tokens of V4.1.
inline const Tokenizer* deepseek_tokenizer() {
  static const Tokenizer* const tokenizer = [] {
    const char* elsewhere = std::getenv("TIDEMILL_DEEPSEEK_TOKENIZER");
    return tokenizer_for_tests(
        elsewhere != nullptr ? elsewhere
                             : TIDEMILL_SOURCE_DIR "/.cache/deepseek-v41-tokenizer.json",
        "\nRun scripts/bootstrap, which makes this file (by scripts/make-test-tokenizer), or set "
        "TIDEMILL_DEEPSEEK_TOKENIZER to the tokenizer.json of a V4.1 checkpoint.");
  }();
  return tokenizer;
}

// Of the bundled mini model: the same rules with 8,192 tokens.
inline const Tokenizer* mini_tokenizer() {
  static const Tokenizer* const tokenizer =
      tokenizer_for_tests(TIDEMILL_SOURCE_DIR "/models/mini/tokenizer.json");
  return tokenizer;
}

// Of the micro test model: 320 tokens, split by the pattern of GPT-2.
inline const Tokenizer* micro_tokenizer() {
  static const Tokenizer* const tokenizer =
      tokenizer_for_tests(TIDEMILL_SOURCE_DIR "/tests/vectors/micro/tokenizer.json");
  return tokenizer;
}

}  // namespace tidemill
