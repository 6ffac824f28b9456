// Holds the texts of the DeepSeek family's chat markers. Code that reads and writes text need not know
// whether a tokenizer has a marker as an added token or spells it with ordinary tokens.
#pragma once

#include <string_view>

namespace hadal {

inline constexpr std::string_view kBos = "<｜begin▁of▁sentence｜>";
inline constexpr std::string_view kEos = "<｜end▁of▁sentence｜>";
inline constexpr std::string_view kUser = "<｜User｜>";
inline constexpr std::string_view kAssistant = "<｜Assistant｜>";
inline constexpr std::string_view kThink = "<think>";
inline constexpr std::string_view kEndThink = "</think>";

// Up to V3.1, calls of tools and their results stand between these markers.
inline constexpr std::string_view kCallsBegin = "<｜tool▁calls▁begin｜>";
inline constexpr std::string_view kCallsEnd = "<｜tool▁calls▁end｜>";
inline constexpr std::string_view kCallBegin = "<｜tool▁call▁begin｜>";
inline constexpr std::string_view kCallEnd = "<｜tool▁call▁end｜>";
inline constexpr std::string_view kSep = "<｜tool▁sep｜>";
inline constexpr std::string_view kOutputsBegin = "<｜tool▁outputs▁begin｜>";
inline constexpr std::string_view kOutputsEnd = "<｜tool▁outputs▁end｜>";
inline constexpr std::string_view kOutputBegin = "<｜tool▁output▁begin｜>";
inline constexpr std::string_view kOutputEnd = "<｜tool▁output▁end｜>";

// V3.2 writes calls of tools as tags: a block of invocations, each with its parameters. The text of a
// parameter is a string as it is ("true"), or another value as JSON ("false").
namespace dsml {

inline constexpr std::string_view kToken = "｜DSML｜";  // in every tag
inline constexpr std::string_view kCallsBegin = "<｜DSML｜function_calls>";
inline constexpr std::string_view kCallsEnd = "</｜DSML｜function_calls>";
inline constexpr std::string_view kInvoke = "<｜DSML｜invoke";  // name="…">
inline constexpr std::string_view kInvokeEnd = "</｜DSML｜invoke>";
inline constexpr std::string_view kParameter = "<｜DSML｜parameter";  // name="…" string="true">
inline constexpr std::string_view kParameterEnd = "</｜DSML｜parameter>";
inline constexpr std::string_view kName = " name=\"";
inline constexpr std::string_view kNameEnd = "\">";
inline constexpr std::string_view kIsString = "\" string=\"true\">";
inline constexpr std::string_view kIsJson = "\" string=\"false\">";

}  // namespace dsml

}  // namespace hadal
