#include "libshard/core/error_text.h"

#include <fmt/format.h>

#include "libshard/core/short_text.h"

namespace shard {

namespace {

std::string headline_of(const Error& error, bool names_rank) {
  const std::string message = error.what();
  std::string headline;
  if (names_rank && error.rank()) {
    const std::string rank = fmt::format("rank {}", *error.rank());
    if (!mentions(message.substr(0, rank.size() + 1), rank)) headline += rank + ": ";
  }
  if (!error.file().empty() && !mentions(message, error.file())) headline += error.file() + ": ";
  if (!error.tensor().empty() && message.find("'" + error.tensor() + "'") == std::string::npos) {
    headline += fmt::format("tensor '{}': ", error.tensor());
  }
  return headline + message;
}

/// "expected 4, found 3", unless the headline and the reason contain both.
std::string values_of(const Error& error, const ErrorLines& lines) {
  const auto is_known = [&](const std::string& value) {
    return mentions(lines.headline, value) || mentions(lines.why, value);
  };
  if (error.expected().empty()) {
    return error.found().empty() || is_known(error.found()) ? std::string() : "found " + error.found();
  }
  if (!lines.why.empty() && is_known(error.expected()) && is_known(error.found())) return {};
  const std::string expected = "expected " + error.expected();
  return error.found().empty() ? expected : fmt::format("{}, found {}", expected, error.found());
}

}  // namespace

ErrorLines lines_of(const Error& error, bool names_rank) {
  ErrorLines lines{headline_of(error, names_rank), error.why()};
  const std::string values = values_of(error, lines);
  if (!lines.why.empty() && !values.empty()) lines.why += "; ";
  lines.why += values;
  return lines;
}

std::string describe(const Error& error) {
  const ErrorLines lines = lines_of(error);
  std::string text = lines.headline;
  if (!lines.why.empty()) text += "\n  why:  " + lines.why;
  if (!error.hint().empty()) text += "\n  hint: " + error.hint();
  return text;
}

}  // namespace shard
