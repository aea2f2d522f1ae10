#include "apps/shardctl/request/command_text.h"

#include <algorithm>
#include <array>

#include "apps/shardctl/text/printable.h"

namespace shard::app {
namespace {

/// Options with one value. In a hint they replace the given value.
constexpr std::array<std::string_view, 10> kSingleInHints{"--as",   "--backend",        "--dtype", "--format",
                                                          "--from", "--hf-ref",         "--map",   "--objects",
                                                          "--to",   "--unknown-globals"};

/// True if the words of `added`, options for the end of a command, include `option`.
bool adds(std::string_view added, std::string_view option) {
  for (std::size_t at = added.find(option); at != std::string_view::npos; at = added.find(option, at + 1)) {
    const std::size_t end = at + option.size();
    if ((at == 0 || added[at - 1] == ' ') && (end == added.size() || added[end] == ' ' || added[end] == '='))
      return true;
  }
  return false;
}

/// The option in kSingleInHints that `word` gives, with or without "=VALUE"; empty for other words.
std::string_view single_option(std::string_view word) {
  const std::string_view name = word.substr(0, word.find('='));
  const auto found = std::ranges::find(kSingleInHints, name);
  return found == kSingleInHints.end() ? std::string_view() : *found;
}

/// The word in the form $'...', which bash and zsh know. Bytes that a message cannot show are hexadecimal.
std::string escaped_and_quoted(const std::string& word) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string quoted = "$'";
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte > 0x7E) {
      quoted += {'\\', 'x', kDigits[byte >> 4], kDigits[byte & 15]};
    } else {
      quoted += c == '\'' || c == '\\' ? std::string{'\\', c} : std::string(1, c);
    }
  }
  return quoted + "'";
}

}  // namespace

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kSafe) == std::string::npos) return word;
  if (printable(word) != word) return escaped_and_quoted(word);
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string repeat_command(const std::vector<std::string>& arguments, const std::string& added) {
  std::string line = "shardctl", rest;
  bool only_words = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    only_words = only_words || word == "--";  // An added option must precede it.
    const std::string_view option = only_words ? std::string_view() : single_option(word);
    if (!option.empty() && adds(added, option)) {
      if (option.size() == word.size()) ++i;  // The next word is its value.
      continue;
    }
    (only_words ? rest : line) += " " + shell_quoted(word);
  }
  return line + (added.empty() ? "" : " " + added) + rest;
}

}  // namespace shard::app
