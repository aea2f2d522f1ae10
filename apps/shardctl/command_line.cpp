#include "apps/shardctl/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "apps/shardctl/option_tree.h"
#include "apps/shardctl/settings.h"
#include "apps/shardctl/verbs.h"
#include "libshard/core/nearest.h"

namespace shard::app {
namespace {

/// Given anew they replace.
constexpr std::array<std::string_view, 3> kSingleInHints{"--format", "--from", "--objects"};

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
  std::size_t verb_at = 0;           ///< Index of the first word in the arguments, or how many there are.
};

/// A first look at the arguments. Options may stand before the verb that takes them, so the verb is only found by
/// knowing which options of all verbs take a value.
Scan scan(const std::vector<std::string>& arguments) {
  CLI::App everything;
  CommonOptions common;
  Options ignored;
  add_all_options(everything, common, ignored);
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

[[noreturn]] void refuse_verb(const std::string& verb) {
  const std::vector<std::string_view> names = verb_names();
  const std::string near = nearest(verb, names);
  throw usage("unknown verb '" + verb + "'")
      .because(fmt::format("the verbs are {}", fmt::join(names, ", ")))
      .hint(near.empty() ? "run 'shardctl --help' for examples" : fmt::format("did you mean '{}'?", near));
}

std::string see_help(const Options& options) {
  return options.verb == nullptr ? "run 'shardctl --help' for the options"
                                 : fmt::format("run 'shardctl help {}' for its options", options.verb->name);
}

/// The error for an argument that the verb does not know.
Error unknown_argument(const CLI::App& app, const Options& options, const std::string& text) {
  const std::string help = see_help(options);
  if (text.size() < 2 || text[0] != '-') return usage(fmt::format("unexpected '{}'", text)).hint(help);
  const std::string name = text.substr(0, text.find('='));
  const std::string near = near_to(name, long_names(app));
  if (contains(all_long_names(), name)) {
    return usage(fmt::format("{} does not take {}", options.verb_name, name)).hint(help);
  }
  return usage("unknown option " + name).hint(near.empty() ? help : fmt::format("did you mean {}?", near));
}

// ---- What must hold between options.

/// \pre the environment and the configuration file have been applied to `app`.
void check_layout(const CLI::App& app, const LayoutOptions& layout) {
  std::vector<std::string> given;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && chooses_layout(*option)) given.push_back("--" + option->get_lnames().front());
  }
  if (given.size() > 1) {
    throw usage(fmt::format("{} contradict each other", fmt::join(given, " and ")))
        .because("each of them alone says which pieces to write")
        .hint("give one of them");
  }
  if (layout.dim && !layout.ranks) throw usage("--dim needs --ranks").hint("add --ranks N");
  if (!layout.place.empty() && layout.mesh.empty()) throw usage("--place needs --mesh").hint("add --mesh A=N");
}

void check_paths(const Options& options) {
  const std::string name(options.verb->name);
  const bool reads_none = options.map.action == "list" || options.map.action == "show";
  if (options.verb->uses.sources && !reads_none && options.source.paths.empty()) {
    throw usage(name + " needs a checkpoint: a file, a folder, or several files of one")
        .hint(fmt::format("run 'shardctl help {}' for examples", name));
  }
  if (contains(options.source.paths, "")) {
    throw usage("a source is an empty string, which names nothing").hint("look for a variable that is not set");
  }
  if (options.verb->uses.target && options.target.path.empty()) {
    throw usage(name + " needs a destination").hint(repeat_command(options.arguments, "-o DST"));
  }
  if (options.target.path == "-") {
    throw usage("cannot write a checkpoint to standard output")
        .hint("name a file or a folder; ./- is one of that name");
  }
}

bool is_set(const Session& session, const std::string& name) {
  const auto value = session.env ? session.env(name) : std::nullopt;
  return value && !value->empty() && *value != "0" && *value != "false";
}

bool is_given(const CLI::App& app, const std::string& name) {
  const CLI::Option* const option = app.get_option_no_throw(name);
  return option != nullptr && option->count() > 0;
}

/// Options of the command line (not those of the environment, which stand for many runs) that a run without a model map
/// would ignore.
std::vector<std::string> stated_for_maps(const CLI::App& app, const Verb* verb) {
  std::vector<std::string> stated;
  const bool has_maps = verb != nullptr && verb->uses.maps;
  if (has_maps && is_given(app, "--set")) stated.emplace_back("--set");
  if (has_maps && verb->name != "export" && is_given(app, "--hf-ref")) stated.emplace_back("--hf-ref");
  return stated;
}

void check_stated_for_maps(const std::vector<std::string>& stated, const Options& options) {
  if (stated.empty() || !options.source.map.empty() || !options.target.map.empty()) return;
  throw usage(fmt::format("{} is for a model map, and none is named", stated.front()))
      .hint(fmt::format("drop {}, or add --map NAME or --to-map NAME", stated.front()));
}

/// Fills everything but the words of the line, which CLI11 would change: it takes '[1:2]' for a list and unpacks it.
void parse_options(std::vector<std::string> arguments, Session& session, Options& options) {
  CLI::App app;
  if (options.verb == nullptr) {
    add_all_options(app, session.common, options);
  } else {
    add_options(app, *options.verb, session.common, options);
  }
  std::reverse(arguments.begin(), arguments.end());  // As CLI11 takes them.
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ExtrasError&) {
    throw unknown_argument(app, options, app.remaining(true).front());
  } catch (const CLI::ParseError& error) {
    throw usage(lower_first(error.what())).hint(see_help(options));
  }
  options.source.states_weights = is_given(app, "--weights");
  const std::vector<std::string> for_maps = stated_for_maps(app, options.verb);
  apply_environment(app, session);
  apply_configuration(app, session, options.verb);
  check_stated_for_maps(for_maps, options);
  if (options.verb != nullptr) check_layout(app, options.target.layout);
}

}  // namespace

void parse_command_line(const std::vector<std::string>& arguments, Session& session, Options& options) {
  options.arguments = arguments;
  const Scan first = scan(arguments);
  session.common.json = contains(first.options, "--json") || is_set(session, "SHARDCTL_JSON");
  const bool asks_help = !first.words.empty() && first.words.front() == "help";
  const std::size_t verb_word = asks_help ? 1 : 0;
  if (first.words.size() > verb_word) options.verb_name = first.words[verb_word];
  options.help = asks_help || contains(first.options, "-h") || contains(first.options, "--help");
  options.version = contains(first.options, "--version");
  options.verb = find_verb(options.verb_name);
  if (!options.verb_name.empty() && options.verb == nullptr) refuse_verb(options.verb_name);
  if (options.help || options.version) return;
  std::vector<std::string> rest = arguments;
  if (options.verb != nullptr) rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(first.verb_at));
  parse_options(std::move(rest), session, options);
  if (options.verb == nullptr) return;
  options.source.paths.assign(first.words.begin() + 1, first.words.end());
  if (options.verb->check != nullptr) options.verb->check(session, options);
  check_paths(options);
  if (options.source.ranks_expected && *options.source.ranks_expected < 1) {
    throw usage("--ranks-expected must be at least 1").found(*options.source.ranks_expected);
  }
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kSafe) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string repeat_command(const std::vector<std::string>& arguments, const std::string& added) {
  const std::string option = added.substr(0, added.find(' '));
  const bool replaces = contains(kSingleInHints, option);
  std::string line = "shardctl", rest;
  bool only_words = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& word = arguments[i];
    only_words = only_words || word == "--";  // What is added is an option: it must stand before.
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
