#include "apps/shardctl/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "apps/shardctl/help.h"
#include "apps/shardctl/option_tree.h"
#include "apps/shardctl/settings.h"
#include "libshard/core/nearest.h"

namespace shard::app {
namespace {

constexpr std::array<std::string_view, 2> kAbsentVerbs{"verify", "repair"};
/// Given anew they replace.
constexpr std::array<std::string_view, 3> kSingleInHints{"--format", "--from", "--objects"};
constexpr std::array<std::string_view, 3> kAbsentOptions{"--resume", "--local-input", "--local-output"};

// ---- Finding the verb.

/// The option that a token names, or null; "--to=x" and "-ox" carry their value with them.
struct Token {
  const CLI::Option* option = nullptr;
  bool has_value = false;
  std::string name;
};

Token option_token(const CLI::App& known, const std::string& text) {
  Token token;
  const bool is_long = text.rfind("--", 0) == 0;
  token.name = is_long ? text.substr(0, text.find('=')) : text.substr(0, 2);
  token.has_value = token.name.size() < text.size();
  token.option = known.get_option_no_throw(token.name);
  return token;
}

struct Scan {
  std::vector<std::string> words;    ///< Non-options, in order; those after "--" too.
  std::vector<std::string> options;  ///< Names of options, in order.
  std::size_t verb_at = 0;           ///< Index of the first word in the arguments, or their number.
};

/// A first look at the arguments, before it is known which options there are.
Scan scan(const std::vector<std::string>& arguments) {
  CLI::App everything;
  Options ignored;
  add_options(everything, "", ignored);
  Scan result;
  result.verb_at = arguments.size();
  bool only_words = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& text = arguments[i];
    if (!only_words && text == "--") {
      only_words = true;
    } else if (!only_words && text.size() > 1 && text[0] == '-') {
      const Token token = option_token(everything, text);
      result.options.push_back(token.name);
      const bool cluster =
          text[1] != '-' && text.size() > 2 && token.option != nullptr && token.option->get_items_expected_max() == 0;
      for (std::size_t j = 2; cluster && j < text.size(); ++j) result.options.push_back({'-', text[j]});
      if (token.option != nullptr && token.option->get_items_expected_max() > 0 && !token.has_value) ++i;
    } else {
      if (result.words.empty()) result.verb_at = i;
      result.words.push_back(text);
    }
  }
  return result;
}

// ---- Errors.

std::string near_to(std::string_view typed, const std::vector<std::string>& words) {
  return nearest(typed, std::vector<std::string_view>(words.begin(), words.end()));
}

Error absent_option(const std::string& name) {
  const std::string near = near_to(name, all_long_names());
  Error error = absent(name);
  return edit_distance(name, near, 1) == 1 ? error.hint(fmt::format("did you mean {}?", near)) : error;
}

[[noreturn]] void refuse_verb(const std::string& verb) {
  if (contains(kAbsentVerbs, verb)) throw absent(verb);
  std::vector<std::string_view> names;
  for (const VerbHelp& known : verbs()) names.push_back(known.name);
  const std::string near = nearest(verb, names);
  throw usage("unknown verb '" + verb + "'")
      .because(fmt::format("the verbs are {}", fmt::join(names, ", ")))
      .hint(near.empty() ? "'shardctl --help' shows examples" : fmt::format("did you mean '{}'?", near));
}

/// What to say about an argument that the verb does not know.
Error unknown_argument(const CLI::App& app, const Options& options, const std::string& text) {
  const std::string help = fmt::format("'shardctl help {}' lists what it takes", options.verb);
  if (text.size() < 2 || text[0] != '-') return usage(fmt::format("unexpected '{}'", text)).hint(help);
  const std::string name = text.substr(0, text.find('='));
  const std::string near = near_to(name, long_names(app));
  if (contains(all_long_names(), name)) {
    return usage(fmt::format("{} takes no {}", options.verb, name)).hint(help);
  }
  return usage("unknown option " + name).hint(near.empty() ? help : fmt::format("did you mean {}?", near));
}

Error bad_value(const CLI::ParseError& error, const Options& options) {
  return usage(lower_first(error.what())).hint(fmt::format("'shardctl help {}' lists what it takes", options.verb));
}

// ---- What must hold between options.

void check_layout(const LayoutOptions& layout) {
  std::vector<std::string> given;
  if (layout.ranks) given.emplace_back("--ranks");
  if (!layout.mesh.empty()) given.emplace_back("--mesh");
  if (!layout.layout.empty()) given.emplace_back("--layout");
  if (!layout.like.empty()) given.emplace_back("--like");
  if (layout.shards) given.emplace_back("--shards");
  if (!layout.max_shard_size.empty()) given.emplace_back("--max-shard-size");
  if (given.size() > 1) {
    throw usage(fmt::format("{} contradict each other", fmt::join(given, " and ")))
        .because("each of them alone says which pieces to write")
        .hint("give one of them");
  }
  if (layout.dim && !layout.ranks) throw usage("--dim without --ranks").hint("add --ranks N");
  if (!layout.place.empty() && layout.mesh.empty()) throw usage("--place without --mesh").hint("add --mesh A=N");
  if (layout.ranks && *layout.ranks < 1) throw usage("--ranks must be at least 1").found(*layout.ranks);
  if (layout.shards && *layout.shards < 1) throw usage("--shards must be at least 1").found(*layout.shards);
}

/// The last word of `cat` is the name of what is shown.
void take_name(Options& options) {
  if (options.sources.size() < 2) {
    throw usage("cat needs a checkpoint and the name of a tensor or object in it")
        .hint("shardctl cat SRC NAME; 'shardctl inspect SRC' lists the names");
  }
  if (options.json && options.cat_format != "text") {
    throw usage(fmt::format("--json and --format {} contradict each other", options.cat_format))
        .hint("give one of them");
  }
  options.name = options.sources.back();
  options.sources.pop_back();
}

void check_shell(const Options& options) {
  if (contains(kShells, options.shell)) return;
  const std::string known = fmt::format("{}", fmt::join(kShells, ", "));
  if (options.shell.empty()) throw usage("completion needs to know the shell").hint("one of " + known);
  throw usage(fmt::format("completion: no script for '{}'", options.shell)).expected(known).found(options.shell);
}

void check_sources(const Options& options) {
  const std::string& verb = options.verb;
  if (verb == "env" || verb == "version" || verb == "help" || verb == "completion") return;
  if (verb == "diff" && options.sources.size() != 2) {
    throw usage(fmt::format("diff compares two checkpoints, {} given", options.sources.size()))
        .hint("shardctl diff A B");
  }
  if (options.sources.empty()) {
    throw usage(verb + " needs a checkpoint: a file, a folder, or several files of one").hint("shardctl help " + verb);
  }
  if (writes(verb) && options.output.empty()) {
    throw usage(verb + " needs to know where to write").hint(repeat_command(options, "-o DST"));
  }
}

void check_numbers(const Options& options) {
  if (!(options.atol >= 0) || !(options.rtol >= 0) || options.ulp < 0) {
    throw usage("--atol, --rtol and --ulp must not be negative");
  }
  if (options.max_diffs && *options.max_diffs < 0) throw usage("--max-diffs must not be negative");
  if (options.ranks_expected && *options.ranks_expected < 1) {
    throw usage("--ranks-expected must be at least 1").found(*options.ranks_expected);
  }
}

/// What the environment asks for, like what the command line asks for; "0" and "false" ask for nothing.
void refuse_absent_settings(const Session& session) {
  for (const std::string_view option : kAbsentOptions) {
    const std::string name = environment_name(option.substr(2));
    const auto value = session.env ? session.env(name) : std::nullopt;
    if (value && !value->empty() && *value != "0" && *value != "false") throw absent(name);
  }
}

void parse_verb(std::vector<std::string> arguments, const Session& session, Options& options) {
  CLI::App app;
  add_options(app, options.verb, options);
  std::reverse(arguments.begin(), arguments.end());  // As CLI11 takes them.
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ExtrasError&) {
    throw unknown_argument(app, options, app.remaining(true).front());
  } catch (const CLI::ParseError& error) {
    throw bad_value(error, options);
  }
  if (writes(options.verb)) refuse_absent_settings(session);
  apply_environment(app, session);
  apply_configuration(app, session, options);
}

}  // namespace

void parse_command_line(const std::vector<std::string>& arguments, const Session& session, Options& options) {
  options.arguments = arguments;
  const Scan first = scan(arguments);
  const auto json = session.env ? session.env("SHARDCTL_JSON") : std::nullopt;
  options.json = contains(first.options, "--json") || (json && !json->empty() && *json != "0" && *json != "false");
  if (!first.words.empty()) options.verb = first.words.front();
  options.help = contains(first.options, "-h") || contains(first.options, "--help") || options.verb == "help";
  options.version = contains(first.options, "--version");
  for (const std::string& name : first.options) {
    if (contains(kAbsentOptions, name)) throw absent_option(name);
  }
  if (options.verb == "help") options.verb = first.words.size() > 1 ? first.words[1] : "";
  if (!options.verb.empty() && find_verb(options.verb) == nullptr) refuse_verb(options.verb);
  if (options.help || options.version) return;
  std::vector<std::string> rest = arguments;
  if (!options.verb.empty()) rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(first.verb_at));
  parse_verb(std::move(rest), session, options);
  if (options.verb.empty()) return;
  options.sources.assign(first.words.begin() + 1, first.words.end());  // CLI11 takes '[1:2]' for a list and unpacks it.
  if (options.verb == "cat") take_name(options);
  if (options.verb == "completion") check_shell(options);
  check_sources(options);
  check_layout(options.layout);
  check_numbers(options);
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kSafe) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string repeat_command(const Options& options, const std::string& added) {
  const std::string option = added.substr(0, added.find(' '));
  const bool replaces = contains(kSingleInHints, option);
  std::string line = "shardctl", rest;
  bool only_words = false;
  for (std::size_t i = 0; i < options.arguments.size(); ++i) {
    const std::string& word = options.arguments[i];
    only_words = only_words || word == "--";  // What is added must stand before: it is an option.
    if (replaces && !only_words && word.starts_with(option + "=")) continue;
    if (replaces && !only_words && word == option) {
      ++i;
      continue;
    }
    (only_words ? rest : line) += " " + shell_quoted(word);
  }
  return line + " " + added + rest;
}

}  // namespace shard::app
