#include "apps/shardctl/arguments/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <map>
#include <optional>
#include <set>

#include "apps/shardctl/arguments/option_tree.h"
#include "apps/shardctl/request/command_text.h"
#include "formats/registry.h"

namespace shard::app {
namespace {

/// An option as the completion scripts describe it.
struct Completed {
  std::vector<std::string> names;  ///< "-o", "--output".
  std::string help;
  std::string value;               ///< "DST"; empty for a flag.
  std::vector<std::string> words;  ///< The possible values; empty: any value.
  bool takes_file = false, repeats = false;
};

/// The words of a CLI11 IsMember check, whose description is "{a,b,c}".
std::vector<std::string> words_of(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const std::size_t begin = type.find('{'), end = type.find('}');
  if (begin == std::string::npos || end == std::string::npos) return {};
  return CLI::detail::split(type.substr(begin + 1, end - begin - 1), ',');
}

Completed completed(const CLI::Option& option) {
  Completed result;
  for (const std::string& name : option.get_snames()) result.names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) result.names.push_back("--" + name);
  result.help = option.get_description();
  if (option.get_items_expected_max() == 0) return result;
  result.value = option.get_option_text();
  result.words = result.value == "FORMAT" ? format_names() : words_of(option);
  result.takes_file =
      result.value == "FILE" || result.value == "DST" || result.value == "CKPT" || result.value.starts_with("ADAPTER");
  result.repeats = option.get_multi_option_policy() == CLI::MultiOptionPolicy::TakeAll;
  return result;
}

/// The options that help lists for a verb, or those of all verbs if `verb` is null.
std::vector<Completed> options_of(const Verb* verb) {
  std::optional<OptionTree> tree;
  verb == nullptr ? tree.emplace(add_all_options) : tree.emplace(*verb);
  std::vector<Completed> result;
  for (const CLI::Option* option : tree->app.get_options()) {
    const bool listed = !option->get_group().empty() && !option->get_positional();
    if (listed) result.push_back(completed(*option));
  }
  return result;
}

std::vector<Completed> global_options() {
  OptionTree tree(add_global_options);
  std::vector<Completed> result;
  for (const CLI::Option* option : tree.app.get_options()) result.push_back(completed(*option));
  return result;
}

/// The options of all verbs that take a value. The word after such an option is not a verb.
std::vector<Completed> valued_options() {
  std::vector<Completed> options = options_of(nullptr);
  std::erase_if(options, [](const Completed& option) { return option.value.empty(); });
  return options;
}

/// The words that follow a verb instead of files, or none.
std::vector<std::string_view> words_after(const Verb& verb) {
  return verb.words == nullptr ? std::vector<std::string_view>() : verb.words();
}

std::string all_names(const std::vector<Completed>& options, std::string_view separator) {
  std::vector<std::string> names;
  for (const Completed& option : options) names.insert(names.end(), option.names.begin(), option.names.end());
  return fmt::format("{}", fmt::join(names, separator));
}

/// Single-quotes a text. fish reads backslashes inside single quotes as escapes.
std::string quoted_for_fish(std::string_view text) {
  const std::string escaped = CLI::detail::find_and_replace(std::string(text), "\\", "\\\\");
  return "'" + CLI::detail::find_and_replace(escaped, "'", "\\'") + "'";
}

// ---- bash.

constexpr std::string_view kBashHead = R"(# Completion of shardctl for bash: source <(shardctl completion bash)
_shardctl() {
  local current=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD-1]} verb= words= i
  local valued=" %VALUED% "
  COMPREPLY=()
  # --to=x comes as the three words --to, = and x.
  if [[ $current == "=" ]]; then
    current=
  elif [[ $before == "=" ]]; then
    before=${COMP_WORDS[COMP_CWORD-2]}
  fi
  for ((i = 1; i < COMP_CWORD; i++)); do
    if [[ $valued == *" ${COMP_WORDS[i]} "* ]]; then
      [[ ${COMP_WORDS[i+1]} != "=" ]] || ((i++))
      ((i++))
    elif [[ ${COMP_WORDS[i]} != -* && ${COMP_WORDS[i]} != "=" ]]; then
      verb=${COMP_WORDS[i]}
      break
    fi
  done
)";
constexpr std::string_view kBashTail = R"(  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
# File names if nothing matches.
complete -o default -F _shardctl shardctl
)";

std::string bash_values(const std::vector<Completed>& options) {
  std::string text = "  case $before in\n";
  for (const Completed& option : options) {
    if (option.words.empty()) continue;
    text += fmt::format("    {}) words=\"{}\" ;;\n", fmt::join(option.names, "|"), fmt::join(option.words, " "));
  }
  return text + "    *)\n      [[ $valued != *\" $before \"* ]] || return 0\n";
}

std::string bash_words() {
  std::string text = "      case $verb in\n";
  text +=
      fmt::format("        \"\") words=\"{} {}\" ;;\n", fmt::join(verb_names(), " "), all_names(global_options(), " "));
  for (const Verb& verb : verbs()) {
    std::string words = all_names(options_of(&verb), " ");
    const std::string after = fmt::format("{}", fmt::join(words_after(verb), " "));
    if (!after.empty()) words = after + " " + words;
    text += fmt::format("        {}) words=\"{}\" ;;\n", verb.name, words);
  }
  return text + "      esac\n  esac\n";
}

std::string bash_script() {
  return CLI::detail::find_and_replace(std::string(kBashHead), "%VALUED%", all_names(valued_options(), " ")) +
         bash_values(options_of(nullptr)) + bash_words() + std::string(kBashTail);
}

// ---- zsh.

/// Escapes a text for a specification of _arguments.
std::string zsh_escaped(std::string_view text) {
  std::string result;
  for (const char c : text) {
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

/// ":DST:_files" for an option with a value, nothing for a flag.
std::string zsh_value(const Completed& option) {
  if (option.value.empty()) return {};
  const std::string what = zsh_escaped(option.value);
  if (!option.words.empty()) return fmt::format(":{}:({})", what, fmt::join(option.words, " "));
  return fmt::format(":{}:{}", what, option.takes_file ? "_files" : " ");
}

void add_zsh_option(std::string& text, const Completed& option, std::string_view indent) {
  const std::string others = option.repeats ? "*" : fmt::format("({})", fmt::join(option.names, " "));
  for (const std::string& name : option.names) {
    const bool is_long = name.starts_with("--");
    const std::string_view joined = option.value.empty() ? "" : is_long ? "=" : "+";
    const std::string spec =
        fmt::format("{}{}{}[{}]{}", others, name, joined, zsh_escaped(option.help), zsh_value(option));
    text += fmt::format(" \\\n{}{}", indent, shell_quoted(spec));
  }
}

std::string zsh_verb(const Verb& verb) {
  std::string text = fmt::format("      {})\n        _arguments -S", verb.name);
  for (const Completed& option : options_of(&verb)) add_zsh_option(text, option, "          ");
  const auto after = words_after(verb);
  const std::string rest = after.empty() ? "*:file:_files" : fmt::format("1:word:({})", fmt::join(after, " "));
  return text + fmt::format(" \\\n          {}\n        ;;\n", shell_quoted(rest));
}

std::string zsh_script() {
  std::string text =
      "#compdef shardctl\n# Completion of shardctl for zsh: source <(shardctl completion zsh)\n"
      "_shardctl() {\n  local curcontext=\"$curcontext\" state line\n  typeset -A opt_args\n  local -a verbs\n  "
      "verbs=(\n";
  for (const Verb& verb : verbs()) {
    text += fmt::format("    {}\n", shell_quoted(fmt::format("{}:{}", verb.name, zsh_escaped(verb.summary))));
  }
  text += "  )\n  _arguments -C -S";
  for (const Completed& option : global_options()) add_zsh_option(text, option, "    ");
  text +=
      " \\\n    '1:verb:->verb' '*::argument:->arguments'\n  case $state in\n    verb) _describe verb verbs ;;\n"
      "    arguments) case $line[1] in\n";
  for (const Verb& verb : verbs()) text += zsh_verb(verb);
  return text +
         "    esac ;;\n  esac\n}\n"
         "if [[ ${funcstack[1]} == _shardctl ]]; then\n  _shardctl \"$@\"\nelse\n  compdef _shardctl shardctl\nfi\n";
}

// ---- fish.

constexpr std::string_view kFishHead = R"(# Completion of shardctl for fish: shardctl completion fish | source
# The first word that is neither an option nor the value of one.
function __shardctl_verb
    set -l skip no
    for word in (commandline -opc)[2..-1]
        if test $skip = yes
            set skip no
        else if contains -- $word %VALUED%
            set skip yes
        else if not string match -q -- '-*' $word
            echo $word
            return
        end
    end
    echo ''
end
)";

std::string fish_option(const Completed& option) {
  std::string text;
  for (const std::string& name : option.names) {
    text += name.starts_with("--") ? " -l " + name.substr(2) : " -s " + name.substr(1);
  }
  if (!option.words.empty()) {
    text += fmt::format(" -x -a '{}'", fmt::join(option.words, " "));
  } else if (!option.value.empty()) {
    text += option.takes_file ? " -r" : " -x";
  }
  return text + " -d " + quoted_for_fish(option.help);
}

std::string fish_script() {
  std::string text =
      CLI::detail::find_and_replace(std::string(kFishHead), "%VALUED%", all_names(valued_options(), " "));
  for (const Verb& verb : verbs()) {
    text += fmt::format("complete -c shardctl -n 'test -z (__shardctl_verb)' -f -a {} -d {}\n", verb.name,
                        quoted_for_fish(verb.summary));
  }
  std::map<std::string, std::vector<std::string_view>> verbs_with;
  std::set<std::string> global;
  for (const Completed& option : global_options()) global.insert(fish_option(option));
  for (const std::string& option : global) text += "complete -c shardctl" + option + "\n";
  for (const Verb& verb : verbs()) {
    for (const Completed& option : options_of(&verb)) verbs_with[fish_option(option)].push_back(verb.name);
    const auto after = words_after(verb);
    if (after.empty()) continue;
    text += fmt::format("complete -c shardctl -n 'contains -- (__shardctl_verb) {}' -f -a '{}'\n", verb.name,
                        fmt::join(after, " "));
  }
  for (const auto& [option, names] : verbs_with) {
    if (global.contains(option)) continue;
    text +=
        fmt::format("complete -c shardctl -n 'contains -- (__shardctl_verb) {}'{}\n", fmt::join(names, " "), option);
  }
  return text;
}

}  // namespace

std::vector<std::string_view> shell_names() { return {"bash", "zsh", "fish"}; }

std::string completion_script(std::string_view shell) {
  return shell == "bash" ? bash_script() : shell == "zsh" ? zsh_script() : fish_script();
}

}  // namespace shard::app
