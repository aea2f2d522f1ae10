#include "apps/shardctl/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <sstream>

#include "apps/shardctl/help.h"
#include "apps/shardctl/suggest.h"
#include "libshard/core/error.h"

namespace shard::app {
namespace {

constexpr std::array<std::string_view, 4> kAbsentVerbs{"verify", "repair", "cat", "completion"};
constexpr std::array<std::string_view, 13> kAbsentOptions{
    "--resume", "--as",      "--ranks-expected", "--launcher",    "--rank",         "--world-size",
    "--rdzv",   "--timeout", "--backend",        "--device",      "--local-input",  "--local-output",
    "--local-ranks"};
/// Of these layouts one may be given; one on the command line hides the others of the environment.
constexpr std::array<std::string_view, 6> kLayouts{"--ranks", "--mesh",   "--layout",
                                                   "--like",  "--shards", "--max-shard-size"};

template <class List>
bool contains(const List& list, std::string_view word) {
  return std::find(list.begin(), list.end(), word) != list.end();
}

Error usage(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

Error absent(std::string_view what) {
  return Error(ErrorCode::kUnsupported, fmt::format("{} is not part of this build", what))
      .hint("'shardctl --help' lists what is");
}

// ---- The options, group by group.

/// Adds options to one group of a help text.
struct Group {
  CLI::App& app;
  const char* name;

  template <class T>
  CLI::Option* single(const char* names, T& value, const char* type, const char* text) {
    return app.add_option(names, value, text)->option_text(type)->take_last()->group(name);
  }
  CLI::Option* many(const char* names, std::vector<std::string>& value, const char* type, const char* text) {
    return app.add_option(names, value, text)->option_text(type)->allow_extra_args(false)->take_all()->group(name);
  }
  template <class T>
  CLI::Option* flag(const char* names, T& value, const char* text) {
    return app.add_flag(names, value, text)->option_text(" ")->group(name);
  }
  /// A word that is looked at when it is parsed.
  CLI::Option* word(const char* names, std::function<void(const std::string&)> take, const char* text) {
    return app.add_option_function<std::string>(names, std::move(take), text)->option_text("WORD")->take_last()->group(name);
  }
};

void add_sources(CLI::App& app, Options& o) {
  app.add_option("SRC", o.sources, "a file, a folder, or several files of one checkpoint");
  Group{app, "Source"}.single("--from", o.from, "FORMAT", "what the source is; by default its content decides");
}

void add_selection(CLI::App& app, Options& o) {
  Group group{app, "Selection and names"};
  group.many("--include", o.selection.include, "GLOB",
             "only these tensors and objects (* stays inside one dotted part, ** crosses)");
  group.many("--exclude", o.selection.exclude, "GLOB", "not these");
  group.many("--strip-prefix", o.selection.strip_prefix, "P", "names lose this prefix");
  group.many("--add-prefix", o.selection.add_prefix, "P", "names get this prefix");
  group.many("--rename", o.selection.rename, "RE=NEW", "regular expression (RE2) and replacement (\\1), all matches");
  group.many("--cast", o.selection.cast, "GLOB=DTYPE", "convert tensors of these resulting names");
  const auto keep = [&o](const std::string& word) { o.selection.keep_objects = word == "keep"; };
  group.word("--objects", keep, "values that are no tensors: keep (default) or drop")
      ->check(CLI::IsMember({"keep", "drop"}));
}

/// Accepted because scripts may say the default aloud; what else they could say is not here yet.
void add_defaults_only(CLI::App& app, const char* name, const char* only, std::vector<std::string> later) {
  const auto take = [name, only, later](const std::string& word) {
    if (contains(later, word)) throw absent(fmt::format("{} {}", name, word));
    if (word != only) throw usage(fmt::format("{}: '{}' is not known", name, word)).expected(only).found(word);
  };
  Group{app, ""}.word(name, take, "");
}

void add_file_cuts(CLI::App& app, Options& o) {
  Group group{app, "Target layout"};
  group.single("--shards", o.layout.shards, "N", "whole tensors in N files, balanced by bytes");
  group.single("--max-shard-size", o.layout.max_shard_size, "SIZE",
               "whole tensors, up to SIZE a file (5GB = 5*10^9, 5GiB binary; folders: 5GB by default)");
}

void add_tensor_cuts(CLI::App& app, Options& o) {
  Group group{app, "Target layout"};
  group.single("--ranks", o.layout.ranks, "N", "cut every tensor into N pieces, as torch.chunk");
  group.single("--dim", o.layout.dim, "D", "with --ranks: along this dimension (default 0; negative from the end)");
  group.single("--mesh", o.layout.mesh, "A=N[,B=M]", "device mesh, slowest axis first");
  group.many("--place", o.layout.place, "GLOB=P[,P]",
             "with --mesh: placements R, S(d), _S(d,f) of these names, one an axis; first match wins, default R");
  group.single("--layout", o.layout.layout, "FILE", "a layout document shardctl.layout/1");
  group.single("--like", o.layout.like, "CKPT", "the layout that another checkpoint has");
}

void add_output(CLI::App& app, Options& o) {
  Group group{app, "Output"};
  group.single("-o,--output", o.output, "DST", "what to write; with a suffix (.safetensors .pt .pth .bin) one file");
  group.single("--to", o.to, "FORMAT", "the format to write");
  group.flag("-n,--dry-run", o.dry_run, "print the plan with its numbers; write nothing");
  group.flag("-f,--force", o.force, "replace an existing DST as a whole");
  group.flag("--no-fsync", o.no_fsync, "do not wait until the disk has it");
}

void add_diff(CLI::App& app, Options& o) {
  Group group{app, "Comparison"};
  group.single("--atol", o.atol, "X", "equal if |a-b| <= atol + rtol*|b|");
  group.single("--rtol", o.rtol, "X", "see --atol");
  group.single("--ulp", o.ulp, "N", "equal if at most N representable numbers apart");
  group.flag("--equal-nan", o.equal_nan, "NaN equals NaN");
  group.single("--max-diffs", o.max_diffs, "N", "list at most N differences of each kind");
}

void add_digest(CLI::App& app, Options& o) {
  Group{app, "Digest"}
      .single("--algorithm", o.algorithm, "NAME", "xxh3_128 (default) or sha256")
      ->check(CLI::IsMember({"xxh3_128", "sha256"}));
}

void add_global(CLI::App& app, Options& o) {
  Group group{app, "Global options"};
  group.flag("--json", o.json, "one JSON document on stdout; errors too");
  group.single("-j,--threads", o.threads, "N", "workers (default: CPUs that may be used)")->check(CLI::Range(0, 4096));
  group.single("--max-memory", o.max_memory, "SIZE", "buffers of all workers together (default 64MiB)");
  group.single("--progress", o.progress, "WHEN", "auto, always, never or json")
      ->check(CLI::IsMember({"auto", "always", "never", "json"}));
  group.single("--color", o.color, "WHEN", "auto, always or never")->check(CLI::IsMember({"auto", "always", "never"}));
  group.flag("-q,--quiet", o.quiet, "only data and errors");
  group.flag("-v,--verbose", o.verbose, "say what is done; -vv with numbers");
  group.single("--log-file", o.log_file, "FILE", "append the log to a file");
  group.single("--config", o.config, "FILE", "options from a TOML or INI file");
  group.flag("-h,--help", o.help, "show this help");
  group.flag("--version", o.version, "show the version in one line");
}

bool is_copy(std::string_view verb) {
  return verb == "split" || verb == "gather" || verb == "reshard" || verb == "convert";
}

/// All options of a verb; of all verbs when `verb` is empty.
void add_options(CLI::App& app, std::string_view verb, Options& o) {
  const bool all = verb.empty(), copies = all || is_copy(verb);
  const bool reads = copies || verb == "inspect" || verb == "diff" || verb == "digest";
  app.set_help_flag();
  if (reads) add_sources(app, o);
  if (copies) {
    add_output(app, o);
    if (verb != "gather") add_tensor_cuts(app, o);
    add_file_cuts(app, o);
    add_defaults_only(app, "--checksum", "none", {"xxh3", "sha256"});
  }
  if (all || verb == "diff") add_diff(app, o);
  if (all || verb == "digest") add_digest(app, o);
  if (reads) {
    add_selection(app, o);
    add_defaults_only(app, "--unknown-globals", "refuse", {"opaque"});
  }
  add_global(app, o);
}

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
      const bool cluster = text[1] != '-' && text.size() > 2 && token.option != nullptr &&
                           token.option->get_items_expected_max() == 0;
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

std::vector<std::string> long_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::Option* option : app.get_options()) {
    if (option->get_group().empty()) continue;
    for (const std::string& name : option->get_lnames()) names.push_back("--" + name);
  }
  return names;
}

[[noreturn]] void refuse_verb(const std::string& verb) {
  if (contains(kAbsentVerbs, verb)) throw absent(verb);
  std::vector<std::string> names;
  for (const VerbHelp& known : verbs()) names.emplace_back(known.name);
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
  const std::string near = nearest(name, long_names(app));
  CLI::App everything;
  Options ignored;
  add_options(everything, "", ignored);
  if (contains(long_names(everything), name)) {
    return usage(fmt::format("{} takes no {}", options.verb, name)).hint(help);
  }
  return usage("unknown option " + name).hint(near.empty() ? help : fmt::format("did you mean {}?", near));
}

std::string lower_first(std::string text) {
  const bool word = text.size() > 1 && text[0] >= 'A' && text[0] <= 'Z' && text[1] >= 'a' && text[1] <= 'z';
  if (word) text[0] = static_cast<char>(text[0] - 'A' + 'a');
  return text;
}

Error bad_value(const CLI::ParseError& error, const Options& options) {
  return usage(lower_first(error.what())).hint(fmt::format("'shardctl help {}' lists what it takes", options.verb));
}

// ---- Environment and configuration file.

std::string environment_name(const CLI::Option& option) {
  std::string name = "SHARDCTL_";
  for (const char c : option.get_lnames().front()) {
    name += c == '-' ? '_' : c >= 'a' && c <= 'z' ? static_cast<char>(c - 'a' + 'A') : c;
  }
  return name;
}

std::vector<CLI::Option*> settable(CLI::App& app) {
  return app.get_options([](const CLI::Option* option) { return !option->get_lnames().empty(); });
}

bool layout_given(const std::vector<CLI::Option*>& options) {
  return std::any_of(options.begin(), options.end(), [](const CLI::Option* option) {
    return option->count() > 0 && contains(kLayouts, "--" + option->get_lnames().front());
  });
}

void set(CLI::Option& option, const std::vector<std::string>& values, const std::string& origin) {
  try {
    for (const std::string& value : values) option.add_result(value);
    option.run_callback();
  } catch (const CLI::ParseError& error) {
    throw usage(lower_first(error.what())).because(fmt::format("it was given by {}", origin));
  }
}

void apply_environment(CLI::App& app, const Session& session) {
  const auto options = settable(app);
  const bool fixed = layout_given(options);
  for (CLI::Option* option : options) {
    const std::string name = environment_name(*option);
    const auto value = session.env ? session.env(name) : std::nullopt;
    const bool hidden = fixed && contains(kLayouts, "--" + option->get_lnames().front());
    if (option->count() == 0 && value && !value->empty() && !hidden) set(*option, {*value}, name);
  }
}

void apply_configuration(CLI::App& app, const Session& session, const Options& options) {
  if (options.config.empty()) return;
  const auto file = session.fs.open(options.config);
  const std::vector<std::byte> bytes = read_whole(*file, 1 << 20);
  std::istringstream text(std::string(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  const auto settings = settable(app);
  const bool fixed = layout_given(settings);
  CLI::App everything;
  Options ignored;
  add_options(everything, "", ignored);
  const auto known = long_names(everything);
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(text)) {
    if (item.name == "++" || item.name == "--") continue;  // CLI11's marks of a section's begin and end.
    const std::string name = "--" + item.name;
    if (!contains(known, name)) {
      throw usage(fmt::format("{}: unknown key '{}'", options.config, item.fullname()))
          .hint("keys are the long names of options");
    }
    if (!item.parents.empty() && item.parents.front() != options.verb) continue;
    for (CLI::Option* option : settings) {
      const bool hidden = fixed && contains(kLayouts, name);
      if (option->check_lname(item.name) && option->count() == 0 && !hidden) set(*option, item.inputs, options.config);
    }
  }
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

void check_sources(const Options& options) {
  const std::string& verb = options.verb;
  if (verb == "env" || verb == "version" || verb == "help") return;
  if (verb == "diff" && options.sources.size() != 2) {
    throw usage(fmt::format("diff compares two checkpoints, {} given", options.sources.size()))
        .hint("shardctl diff A B");
  }
  if (options.sources.empty()) {
    throw usage(verb + " needs a checkpoint: a file, a folder, or several files of one").hint("shardctl help " + verb);
  }
  if (is_copy(verb) && options.output.empty()) {
    throw usage(verb + " needs to know where to write").hint(repeat_command(options, "-o DST"));
  }
}

void check_numbers(const Options& options) {
  if (!(options.atol >= 0) || !(options.rtol >= 0) || options.ulp < 0) {
    throw usage("--atol, --rtol and --ulp must not be negative");
  }
  if (options.max_diffs && *options.max_diffs < 0) throw usage("--max-diffs must not be negative");
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
  apply_environment(app, session);
  apply_configuration(app, session, options);
}

/// Help of one verb's options: no environment names, no types but ours.
class HelpFormatter : public CLI::Formatter {
 public:
  std::string make_option_opts(const CLI::Option* option) const override { return " " + option->get_option_text(); }
};

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
    if (contains(kAbsentOptions, name)) throw absent(name);
  }
  if (options.verb == "help") options.verb = first.words.size() > 1 ? first.words[1] : "";
  if (!options.verb.empty() && find_verb(options.verb) == nullptr) refuse_verb(options.verb);
  if (options.help || options.version) return;
  std::vector<std::string> rest = arguments;
  if (!options.verb.empty()) rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(first.verb_at));
  parse_verb(std::move(rest), session, options);
  if (options.verb.empty()) return;
  check_sources(options);
  check_layout(options.layout);
  check_numbers(options);
}

std::string help_text(const std::string& verb) {
  CLI::App app;
  Options ignored;
  const VerbHelp* help = find_verb(verb);
  app.set_help_flag();
  if (help == nullptr) {
    add_global(app, ignored);
  } else {
    add_options(app, verb, ignored);
  }
  HelpFormatter formatter;
  formatter.column_width(32);
  std::string text = help == nullptr ? general_help() : fmt::format("shardctl {}: {}\n\nUsage: shardctl {}\n\nExamples:\n{}",
                                                                    help->name, help->summary, help->usage, help->examples);
  if (help != nullptr && !help->details.empty()) text += fmt::format("\n{}\n", help->details);
  text += formatter.make_groups(&app, CLI::AppFormatMode::Normal);
  return text + "\n" + exit_codes_help(verb) +
         "\nEvery option can be set in the environment: SHARDCTL_ and its name in capitals (SHARDCTL_MAX_MEMORY=1GiB).\n";
}

std::string shell_quoted(const std::string& word) {
  constexpr std::string_view kSafe = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_./=:,+@%";
  if (!word.empty() && word.find_first_not_of(kSafe) == std::string::npos) return word;
  std::string quoted = "'";
  for (const char c : word) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return quoted + "'";
}

std::string repeat_command(const Options& options, const std::string& added) {
  std::string line = "shardctl", rest;
  bool only_words = false;
  for (const std::string& word : options.arguments) {
    only_words = only_words || word == "--";  // What is added must stand before: it is an option.
    (only_words ? rest : line) += " " + shell_quoted(word);
  }
  return line + " " + added + rest;
}

}  // namespace shard::app
