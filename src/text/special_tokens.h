// Special tokens of DeepSeek-V4.1 by spelling. The bar is U+FF5C, the low block U+2581. Ids are the
// tokenizer's: Tokenizer::added_token(spelling).
#pragma once

#include <string_view>

namespace tidemill::special {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
// Closes every finished assistant turn; the model stops on it.
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kSystem = "<｜System｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kLatestReminder = "<｜latest_reminder｜>";
inline constexpr std::string_view kThinkBegin = "<think>";
inline constexpr std::string_view kThinkEnd = "</think>";
// Tag marker of tool calls. The brackets around it and the tag's words are ordinary text.
inline constexpr std::string_view kDsml = "｜DSML｜";
inline constexpr std::string_view kImage = "<｜deepseek_image｜>";

}  // namespace tidemill::special
