#include "apps/shardctl/arguments/command_line.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <span>
#include <sstream>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "apps/shardctl/arguments/option_tree.h"
#include "apps/shardctl/request/command_text.h"
#include "libshard/core/ascii.h"
#include "libshard/core/contains.h"
#include "libshard/core/nearest.h"
#include "libshard/core/parse_number.h"
#include "libshard/io/destination.h"
#include "libshard/io/small_text.h"
#include "libshard/io/url_path.h"
#include "libshard/map/documents/builtin_maps.h"
#include "libshard/stores/url_store.h"

namespace shard::app {
namespace {

std::vector<CLI::Option*> settable(CLI::App& app) {
  return app.get_options([](const CLI::Option* option) {
    return !option->get_lnames().empty() && !option->check_lname("help") && !option->check_lname("version");
  });
}

bool layout_given(const std::vector<CLI::Option*>& options) {
  return std::any_of(options.begin(), options.end(),
                     [](const CLI::Option* option) { return option->count() > 0 && chooses_layout(*option); });
}

/// CLI11's error in the form of ours.
Error usage_of(const CLI::ParseError& error) {
  constexpr std::string_view kUnconverted = "Could not convert: ", kMissing = ": 1 required ";
  std::string text = error.what();
  if (const std::size_t name = text.find(kMissing); name != std::string::npos) {
    return usage(text.substr(0, name) + " needs a value");
  }
  if (text.starts_with(kUnconverted)) return usage("cannot read the value in " + text.substr(kUnconverted.size()));
  if (text.starts_with(": ")) text.erase(0, 2);  // CLI11 omits the names of options that help does not list.
  return usage(lower_first(text));
}

/// Sets an option from `origin`: the environment or a configuration file. \throws Error kInvalidArgument  a bad value
void set(CLI::Option& option, const std::vector<std::string>& values, const std::string& origin,
         TypedCommand& command) try {
  const std::string& name = option.get_lnames().front();
  if (values.empty()) throw usage(fmt::format("--{} has an empty list of values", name));
  for (const std::string& value : values) {
    option.add_result(value);
    command.origins.push_back({name, value, origin, option.get_items_expected_max() == 0});
    if (!concerns_one_process(option)) command.settings.push_back(fmt::format("--{}={}", name, value));
  }
  option.run_callback();
} catch (const CLI::ParseError& error) {
  throw usage_of(error);
} catch (const std::out_of_range&) {
  throw usage(fmt::format("--{}: the number is out of range", option.get_lnames().front()));
}

/// The environment variable of an option: SHARDCTL_ and its long name in capitals, SHARDCTL_DRY_RUN for "dry-run".
std::string environment_name(std::string_view option) {
  std::string name = "SHARDCTL_";
  for (const char c : option) name += c == '-' ? '_' : to_upper(c);
  return name;
}

/// The values in an environment variable of an option: its lines, if the option may be repeated.
std::vector<std::string> values_in(const std::string& variable, const CLI::Option& option) {
  if (option.get_multi_option_policy() != CLI::MultiOptionPolicy::TakeAll) return {variable};
  std::vector<std::string> values;
  std::istringstream lines(variable);
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) values.push_back(line);
  }
  return values;
}

/// Fills the options of `app` that have no value yet from SHARDCTL_* variables. Skips --help and --version, because
/// build scripts may well set SHARDCTL_VERSION to a version. If the command line gives a layout, the environment's
/// layout is ignored.
/// \throws Error kInvalidArgument  a bad value, naming the variable.
void apply_environment(CLI::App& app, Session& session) {
  const auto options = settable(app);
  const bool fixed = layout_given(options);
  for (CLI::Option* option : options) {
    const std::string name = environment_name(option->get_lnames().front());
    const auto value = session.env ? session.env(name) : std::nullopt;
    const bool hidden = fixed && chooses_layout(*option);
    if (option->count() > 0 || !value || value->empty() || hidden) continue;
    const std::vector<std::string> values = values_in(*value, *option);
    if (values.empty()) continue;
    try {
      set(*option, values, name, session.command);
    } catch (const Error& error) {
      throw Error(error).because(fmt::format("{} sets it", name));
    }
  }
}

/// The options of each verb that has a section.
using SectionOptions = std::map<std::string, OptionTree>;

/// \param known  the long names of all options. \throws Error kInvalidArgument  the setting would never have an effect
void check_setting(const CLI::ConfigItem& item, std::span<const std::string> known, SectionOptions& sections) {
  const bool is_section = item.parents.size() == 1 && find_verb(item.parents.front()) != nullptr;
  if (!item.parents.empty() && !is_section) {
    throw usage(fmt::format("unknown section '{}'", fmt::join(item.parents, ".")))
        .hint("use a verb's name for a section");
  }
  if (!contains(known, "--" + item.name)) {
    throw usage(fmt::format("unknown key '{}'", item.fullname())).hint("use long option names as keys");
  }
  if (item.name == "config") throw usage("a configuration file cannot name another one");
  if (item.name == "help" || item.name == "version") {
    throw usage(fmt::format("a configuration file cannot set {}", item.name));
  }
  if (!is_section) return;
  const std::string& verb = item.parents.front();
  const OptionTree& taken = sections.try_emplace(verb, *find_verb(verb)).first->second;
  if (taken.app.get_option_no_throw("--" + item.name) != nullptr) return;
  throw usage(fmt::format("{} does not take {}", verb, item.name))
      .hint(fmt::format("remove '{}' from section '{}'", item.name, verb));
}

/// The settings of a configuration file that concern one verb: values by key, those of a key that is repeated together.
struct Settings {
  std::map<std::string, std::vector<std::string>> of_verb, of_all;  ///< In the verb's section, and above all sections.
};

/// \throws Error kInvalidArgument  an unknown key or section
Settings parse_configuration(std::string text, const Verb* verb) {
  constexpr std::string_view kMark = "\xEF\xBB\xBF";  // Some editors begin UTF-8 with it.
  if (text.starts_with(kMark)) text.erase(0, kMark.size());
  std::istringstream stream(text);
  const auto known = all_long_names();
  SectionOptions sections;
  Settings settings;
  for (const CLI::ConfigItem& item : CLI::ConfigTOML().from_config(stream)) {
    if (item.name == "++" || item.name == "--")
      continue;  // CLI11 marks the begin and end of a section with these names.
    if (item.name.starts_with('[')) throw usage(fmt::format("the section header '{}' has no ']'", item.name));
    check_setting(item, known, sections);
    const bool is_for_all = item.parents.empty();
    if (!is_for_all && (verb == nullptr || item.parents.front() != verb->name)) continue;
    std::vector<std::string>& values = (is_for_all ? settings.of_all : settings.of_verb)[item.name];
    values.insert(values.end(), item.inputs.begin(), item.inputs.end());
  }
  return settings;
}

/// Fills the options of `app` that still have no value from the file that --config names, if it is given: from the
/// verb's section, and then from the keys above the first section. A layout that is already set hides later ones.
/// \throws Error kNotFound; kInvalidArgument  an unknown key or a bad value, naming it and the file.
void apply_configuration(CLI::App& app, Session& session, const Verb* verb) try {
  const std::string& path = session.common.config;
  if (path.empty()) return;
  const Settings settings = parse_configuration(whole_text(*session.fs.open(path), 1 << 20), verb);
  const auto options = settable(app);
  for (const auto* part : {&settings.of_verb, &settings.of_all}) {
    const bool fixed = layout_given(options);
    for (const auto& [name, values] : *part) {
      for (CLI::Option* option : options) {
        const bool hidden = fixed && chooses_layout(*option);
        if (option->check_lname(name) && option->count() == 0 && !hidden) set(*option, values, path, session.command);
      }
    }
  }
} catch (const Error& error) {
  throw Error(error).in_file(session.common.config);
}

// ---- Finding the verb.

/// Adds the names of the options in an argument to `names`. The argument is a long option ("--to=x"), or several short
/// ones, of which only the last takes a value ("-nfoDST"). \returns whether the next argument is that value.
bool add_names_in(const std::string& text, const CLI::App& known, std::vector<std::string>& names) {
  const auto takes_value = [&] {
    const CLI::Option* const option = known.get_option_no_throw(names.back());
    return option != nullptr && option->get_items_expected_max() > 0;
  };
  if (text.starts_with("--")) {
    const std::size_t equals = text.find('=');
    names.push_back(text.substr(0, equals));
    return equals == std::string::npos && takes_value();
  }
  for (std::size_t i = 1; i < text.size(); ++i) {
    names.push_back({'-', text[i]});
    if (takes_value()) return i + 1 == text.size();
  }
  return false;
}

struct Scan {
  std::vector<std::string> words;    ///< Arguments that are not options, in order, including those after "--".
  std::vector<std::string> options;  ///< Names of options, in order.
  std::size_t verb_at = 0;           ///< Index of the first word in the arguments, or their number if there is no word.
};

/// Scans the arguments for words and options. Options may precede the verb that takes them, so finding the verb
/// requires knowing which options of all verbs take a value.
Scan scan(const std::vector<std::string>& arguments) {
  const OptionTree everything(add_all_options);
  Scan result;
  result.verb_at = arguments.size();
  bool only_words = false;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    const std::string& text = arguments[i];
    if (!only_words && text == "--") {
      only_words = true;
    } else if (!only_words && text.size() > 1 && text[0] == '-') {
      if (add_names_in(text, everything.app, result.options)) ++i;
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

/// Names that other tools use for one of our verbs.
struct Synonym {
  std::string_view word, verbs;
};
constexpr std::array kSynonyms{
    Synonym{"merge", "'gather' or 'export'"},
    Synonym{"consolidate", "'gather' or 'export'"},
    Synonym{"join", "'gather'"},
    Synonym{"combine", "'gather'"},
    Synonym{"unshard", "'gather'"},
    Synonym{"shard", "'split'"},
    Synonym{"chunk", "'split'"},
    Synonym{"resize", "'reshard'"},
    Synonym{"redistribute", "'reshard'"},
    Synonym{"cast", "'convert' with --cast"},
    Synonym{"rename", "'convert' with --rename"},
    Synonym{"ls", "'inspect'"},
    Synonym{"list", "'inspect'"},
    Synonym{"info", "'inspect'"},
    Synonym{"show", "'inspect' or 'cat'"},
    Synonym{"print", "'cat'"},
    Synonym{"dump", "'cat'"},
    Synonym{"compare", "'diff'"},
    Synonym{"check", "'verify'"},
    Synonym{"validate", "'verify'"},
    Synonym{"fix", "'repair'"},
    Synonym{"recover", "'repair'"},
    Synonym{"hash", "'digest'"},
    Synonym{"checksum", "'digest'"},
    Synonym{"copy", "'convert'"},
    Synonym{"to-hf", "'export'"},
    Synonym{"save", "'convert' or 'export'"},
};

/// The verbs that a word probably means, in quotes; empty if there is no good guess.
std::string meant_verb(const std::string& word) {
  const auto known = std::ranges::find(kSynonyms, word, &Synonym::word);
  if (known != kSynonyms.end()) return std::string(known->verbs);
  const std::string near = nearest(word, verb_names());
  return near.empty() ? near : fmt::format("'{}'", near);
}

/// The error for a command line without a known verb. `meant`: see meant_verb.
Error with_verbs(Error error, const std::string& meant) {
  return error.because(fmt::format("the verbs are {}", fmt::join(verb_names(), ", ")))
      .hint(meant.empty() ? "run 'shardctl --help' for examples" : fmt::format("did you mean {}?", meant));
}

std::string see_help(const Request& request) {
  return request.verb == nullptr ? "run 'shardctl --help' for the options"
                                 : fmt::format("run 'shardctl help {}' for its options", request.verb->name);
}

/// The error for an argument that is unknown to the verb.
Error unknown_argument(const CLI::App& app, const Request& request, const std::string& verb, const std::string& text) {
  const std::string help = see_help(request);
  if (text.size() < 2 || text[0] != '-') return usage(fmt::format("unexpected '{}'", text)).hint(help);
  const std::string name = text.substr(0, text.find('='));
  const std::string near = near_to(name, long_names(app));
  if (contains(all_long_names(), name)) {
    return usage(fmt::format("{} does not take {}", verb, name)).hint(help);
  }
  return usage("unknown option " + name).hint(near.empty() ? help : fmt::format("did you mean {}?", near));
}

// ---- Rules between options.

/// \pre the environment and the configuration file have been applied to `app`.
void check_layout(const CLI::App& app, const LayoutRequest& layout) {
  std::vector<std::string> given;
  for (const CLI::Option* option : app.get_options()) {
    if (option->count() > 0 && chooses_layout(*option)) given.push_back("--" + option->get_lnames().front());
  }
  if (given.size() > 1) {
    throw usage(fmt::format("{} contradict each other", fmt::join(given, " and ")))
        .because("each of them defines the whole layout")
        .hint("give one of them");
  }
  if (layout.dim && !layout.ranks) throw usage("--dim needs --ranks").hint("add --ranks N");
  if (!layout.place.empty() && layout.mesh.empty()) throw usage("--place needs --mesh").hint("add --mesh A=N");
}

/// The command with its last word as -o, if no file has that name yet, because it is then meant as the destination.
/// Otherwise the command with a destination to fill in.
std::string with_destination(const Session& session, const Request& request) {
  const std::vector<std::string>& paths = request.read.paths;
  const bool is_destination = paths.size() > 1 && !is_url(paths.back()) && !session.fs.exists(paths.back());
  if (!is_destination) return repeat_command(session.command.arguments, "-o DST");
  std::vector<std::string> words = session.command.arguments;
  words.erase(std::find(words.rbegin(), words.rend(), paths.back()).base() - 1);
  return repeat_command(words, "-o " + shell_quoted(paths.back()));
}

void check_paths(const Session& session, const Request& request) {
  const std::string name(request.verb->name);
  const bool reads_none = request.map.action == "list" || request.map.action == "show";
  if (request.verb->uses.sources && !reads_none && request.read.paths.empty()) {
    throw usage(name + " needs a checkpoint: a file, a folder, or several files of one")
        .hint(fmt::format("run 'shardctl help {}' for examples", name));
  }
  if (contains(request.read.paths, "")) {
    throw usage("a source is an empty string").hint("check for an unset shell variable");
  }
  if (request.verb->uses.target && request.write.path.empty() && !request.left_uploads) {
    throw usage(name + " needs a destination").hint(with_destination(session, request));
  }
  const auto paths = {request.write.path, request.page.path, session.common.log_file};
  for (const std::string& path : paths) {
    const bool is_object = &path == paths.begin() && is_writable_url(path);
    if (!is_url(path) || is_object) continue;
    throw Error(ErrorCode::kUnsupported, fmt::format("writing to {}:// is not supported", url_scheme(path)))
        .in_file(path)
        .hint("write to a local path, and upload the result");
  }
  for (const std::string& path : paths) {
    if (path.size() < 2 || path.front() != '-') continue;
    throw usage(fmt::format("cannot write to '{}': it looks like an option", path))
        .hint(fmt::format("give a name, or ./{} for a file of this name", path));
  }
  if (is_url(request.write.path) && request.run.local_output) {
    throw usage("--local-output needs a local path").because("all ranks write to one place in an object store");
  }
  if (request.write.path == "-") {
    throw usage("cannot write a checkpoint to standard output")
        .hint("give a file or folder; if its name is '-', write ./-");
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

/// Options on the command line that a run without a model map would ignore. Those from the environment do not count,
/// because they are set for many runs.
std::vector<std::string> stated_for_maps(const CLI::App& app, const Verb* verb) {
  std::vector<std::string> stated;
  const bool has_maps = verb != nullptr && verb->uses.maps;
  if (has_maps && is_given(app, "--set")) stated.emplace_back("--set");
  if (has_maps && verb->name != "export" && is_given(app, "--hf-ref")) stated.emplace_back("--hf-ref");
  return stated;
}

void check_stated_for_maps(const std::vector<std::string>& stated, const Request& request) {
  if (stated.empty() || !request.read.map.empty() || !request.write.map.empty()) return;
  throw usage(fmt::format("{} needs a model map", stated.front()))
      .hint(fmt::format("drop {}, or add --map NAME{}", stated.front(),
                        request.verb->uses.takes_second_map() ? " or --to-map NAME" : ""));
}

/// Refuses --checksum none on the command line with --if-changed, which compares DST with the hashes of its manifest.
/// From the environment, "none" is the default of many runs, and this run has the manifest.
void check_hashes(bool states_none, const WriteRequest& write) {
  if (!states_none || !write.if_changed) return;
  throw usage("--if-changed and --checksum none contradict each other")
      .because("--if-changed needs the manifest beside the output, which has a hash of every block")
      .hint("drop --checksum none for a manifest with xxh3, or drop --if-changed");
}

/// Refuses empty words. A shell writes one for an unset variable, and CLI11 would ignore it.
void refuse_empty_values(const CLI::App& app) {
  for (const CLI::Option* option : app.get_options()) {
    if (!option->nonpositional() || !contains(option->results(), "")) continue;  // A tensor may have no name.
    throw usage(fmt::format("{} has an empty value", option->get_name()))
        .hint(fmt::format("give a value, or omit {}", option->get_name()));
  }
}

/// Parses the options. The words of the line do not pass through CLI11, which would change them. For example, it would
/// unpack '[1:2]' as a list.
void parse_options(std::vector<std::string> arguments, Session& session, Request& request) {
  CLI::App app;
  if (request.verb == nullptr) {
    add_all_options(app, session.common, request);
  } else {
    add_options(app, *request.verb, session.common, request);
  }
  std::reverse(arguments.begin(), arguments.end());  // CLI11 takes them in reverse order.
  try {
    app.parse(std::move(arguments));
  } catch (const CLI::ExtrasError&) {
    throw unknown_argument(app, request, session.command.verb, app.remaining(true).front());
  } catch (const CLI::ParseError& error) {
    throw usage_of(error).hint(see_help(request));
  } catch (const std::out_of_range&) {  // CLI11 lets it pass, for --verbose=N.
    throw usage("a flag has a number that is out of range").hint(see_help(request));
  }
  refuse_empty_values(app);
  for (const auto& [name, word] : request.read.choices) request.read.stated_choices.push_back(name);
  const std::vector<std::string> for_maps = stated_for_maps(app, request.verb);
  const bool states_no_hashes = is_given(app, "--checksum") && request.write.checksum == "none";
  apply_environment(app, session);
  apply_configuration(app, session, request.verb);
  check_stated_for_maps(for_maps, request);
  request.read.numbers.maps = {request.read.map, request.write.map};
  std::erase(request.read.numbers.maps, "");
  check_hashes(states_no_hashes, request.write);
  max_memory_bytes(session);  // Checks it, even for verbs that do not use it.
  if (request.verb != nullptr) check_layout(app, request.write.layout);
}

/// "ADAPTER=WEIGHT", unless that is a path. A path may contain '=', so only a number after the last one is a weight.
AdapterRequest parse_adapter(const LocalDisk& fs, const std::string& text) {
  if (fs.exists(text)) return {text};
  const std::size_t equals = text.rfind('=');
  const std::string_view word = equals == std::string::npos ? "" : std::string_view(text).substr(equals + 1);
  const std::optional<double> weight = parse_number<double>(word);
  if (text.empty() || equals == 0 || (weight && !std::isfinite(*weight))) {
    throw usage(fmt::format("--lora '{}' is not ADAPTER[=WEIGHT]", text)).hint("give a folder, such as adapter=0.5");
  }
  return weight ? AdapterRequest{text.substr(0, equals), *weight} : AdapterRequest{text};
}

void check_requantize(const ReadRequest& read) {
  if (!read.requantize) return;
  if (read.adapters.empty()) throw usage("--requantize needs --lora").hint("give the adapter: --lora ADAPTER");
  if (read.dequantize) {
    throw usage("--requantize and --dequantize contradict each other")
        .hint("drop --dequantize to keep the quantized form");
  }
  if (!read.map.empty()) {
    throw usage("--requantize cannot be combined with --map").because("packed codes have no names in the map");
  }
}

/// Joins `--dequantize` to a dtype that follows it. Any other word that follows is a path.
std::vector<std::string> with_joined_dtype(std::vector<std::string> arguments) {
  const auto end = std::ranges::find(arguments, "--");
  for (auto at = arguments.begin(); at != end; ++at) {
    if (*at != "--dequantize" || at + 1 == end || !dtype_of_name(*(at + 1))) continue;
    *at += "=" + *(at + 1);
    arguments.erase(at + 1);
    break;
  }
  return arguments;
}

/// The files that are read because options name them, but not SRC and --hf-ref. Built-in maps do not count.
std::vector<std::string> named_inputs(const CommonOptions& common, const Request& request) {
  std::vector<std::string> inputs;
  const LayoutRequest& layout = request.write.layout;
  for (const std::string& path :
       {layout.like, layout.layout, request.read.layout, request.like, request.against, common.config}) {
    if (!path.empty()) inputs.push_back(path);
  }
  for (const AdapterRequest& adapter : request.read.adapters) inputs.push_back(adapter.path);
  for (const std::string& map : {request.read.map, request.write.map}) {
    if (!map.empty() && find_builtin_map(map) == nullptr) inputs.push_back(map);
  }
  return inputs;
}

/// Whether the log is `path`, or is inside that folder or a link to one of its files.
bool is_log_in(const Session& session, const std::string& path) try {
  return find_overlap(session.fs, Destination(session.common.log_file), path) != nullptr;
} catch (const Error&) {
  return false;  // Opening the log or the file reports the error.
}

/// Refuses a log that would change a file or a folder that is read, and does not log this error.
void check_log(Session& session, const Request& request) {
  std::vector<std::string> paths = request.read.paths;
  paths.insert(paths.end(), request.read.named_inputs.begin(), request.read.named_inputs.end());
  if (const std::string& reference = request.read.numbers.hf_ref; !reference.empty()) paths.push_back(reference);
  const auto read = std::ranges::find_if(paths, [&](const auto& path) { return is_log_in(session, path); });
  if (read == paths.end()) return;
  const bool is_in_folder = session.fs.is_folder(*read);
  throw Error(ErrorCode::kExists, is_in_folder ? "cannot write the log: it is in a folder that this command reads"
                                               : "cannot write the log: the file is read by this command")
      .in_file(std::exchange(session.common.log_file, {}))
      .because(is_in_folder ? "the folder is " + *read : "")
      .hint("pass another file to --log-file");
}

/// Keeps an error before check_log out of a log that may be a file to read, which any other argument names, or whose
/// name was meant as an option.
void forget_log_of_input(Session& session) {
  if (session.common.log_file.starts_with('-')) session.common.log_file.clear();
  std::string_view before;
  for (const std::string_view word : session.command.arguments) {
    const bool is_log = before == "--log-file" || word.starts_with("--log-file=");
    const std::size_t value = word.starts_with("--") ? word.find('=') + 1 : 0;  // npos + 1 is 0.
    if (!is_log && is_log_in(session, std::string(word.substr(value)))) session.common.log_file.clear();
    before = word;
  }
}

void parse_checked(const std::vector<std::string>& arguments, Session& session, Request& request) {
  const Scan first = scan(arguments);
  session.common.json = contains(first.options, "--json") || is_set(session, "SHARDCTL_JSON");
  const bool asks_help = !first.words.empty() && first.words.front() == "help";
  const std::size_t verb_word = asks_help ? 1 : 0;
  if (first.words.size() > verb_word) session.command.verb = first.words[verb_word];
  request.help = asks_help || contains(first.options, "-h") || contains(first.options, "--help");
  request.all_options = contains(first.options, "--all");
  request.version = contains(first.options, "--version");
  request.verb = find_verb(session.command.verb);
  if (const std::string& verb = session.command.verb; !verb.empty() && request.verb == nullptr) {
    throw with_verbs(usage("unknown verb '" + verb + "'"), meant_verb(verb));
  }
  if (request.help || request.version) return;
  std::vector<std::string> rest = arguments;
  if (request.verb != nullptr) rest.erase(rest.begin() + static_cast<std::ptrdiff_t>(first.verb_at));
  parse_options(std::move(rest), session, request);
  if (request.verb == nullptr && session.common.json) throw with_verbs(usage("the command line has no verb"), "");
  if (request.verb == nullptr) return;
  request.read.paths.assign(first.words.begin() + 1, first.words.end());
  if (request.verb->check != nullptr) request.verb->check(session, request);
  check_paths(session, request);
  request.write.defaults = request.verb->target;
  for (const std::string& word : request.read.lora) request.read.adapters.push_back(parse_adapter(session.fs, word));
  check_requantize(request.read);
  request.read.named_inputs = named_inputs(session.common, request);
  if (!session.common.log_file.empty()) {
    check_log(session, request);
    request.read.named_inputs.push_back(session.common.log_file);  // The output must not replace it.
  }
  if (request.read.ranks_expected && *request.read.ranks_expected < 1) {
    throw usage("--ranks-expected must be at least 1").found(*request.read.ranks_expected);
  }
}

}  // namespace

void parse_command_line(const std::vector<std::string>& given, Session& session, Request& request) try {
  session.command.arguments = with_joined_dtype(given);
  parse_checked(session.command.arguments, session, request);
} catch (...) {
  if (!session.common.log_file.empty()) forget_log_of_input(session);
  throw;
}

}  // namespace shard::app
