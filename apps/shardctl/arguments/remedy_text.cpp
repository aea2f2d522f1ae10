#include "apps/shardctl/arguments/remedy_text.h"

#include <fmt/format.h>

#include <algorithm>

#include "apps/shardctl/arguments/option_tree.h"
#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/request/command_text.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

/// The command that failed.
struct Command {
  const Request& request;
  const std::vector<std::string>& arguments;

  bool takes_layout() const { return request.verb != nullptr && request.verb->uses.target_layout; }
};

std::string exclude_option(const std::string& name) {
  return "--exclude " + (name.empty() ? std::string("NAME") : shell_quoted(glob_of_name(name)));
}

/// The option that is the whole remedy; empty if the remedy also needs a value from the user, or a different command.
std::string option_of(const Suggestion& suggestion) {
  const std::string& argument = suggestion.argument;
  switch (suggestion.remedy) {
    case Remedy::kDropObjects:
      return "--objects drop";
    case Remedy::kExclude:
      return argument.empty() ? std::string() : exclude_option(argument);
    case Remedy::kReadAs:
      return argument.empty() ? std::string() : "--from " + argument;
    case Remedy::kDequantize:
      return "--dequantize";
    case Remedy::kNameRegion:
      return argument.empty() ? std::string() : "--region " + shell_quoted(argument);
    default:
      return {};
  }
}

/// Shell words for the source that kReadFolder or kReadFiles suggests. The stars of a pattern stay outside quotes.
std::string paths_to_read(const Suggestion& suggestion) {
  if (suggestion.remedy != Remedy::kReadFiles) return shell_quoted(suggestion.argument);
  std::string_view pattern = suggestion.argument;
  const std::size_t name = pattern.rfind('/') + 1;
  std::string words = name == 0 ? std::string() : shell_quoted(std::string(pattern.substr(0, name)));
  for (pattern.remove_prefix(name); !pattern.empty();) {
    const std::string_view part = pattern.substr(0, pattern.find('*'));
    if (!part.empty()) words += shell_quoted(std::string(part));
    pattern.remove_prefix(part.size());
    if (pattern.empty()) break;
    words += '*';
    pattern.remove_prefix(1);
  }
  return words;
}

/// The command with the suggested source instead of `path`; empty if no argument is that path. A folder also replaces
/// the other named files that it contains.
std::string read_instead(const std::string& path, const Suggestion& suggestion, const Command& command) {
  std::string line = "shardctl";
  bool is_replaced = false;
  const auto is_in_folder = [&](const std::string& word) {
    return suggestion.remedy == Remedy::kReadFolder && contains(command.request.read.paths, word) &&
           parent_path(word) == suggestion.argument;
  };
  for (const std::string& word : command.arguments) {
    const bool is_path = word == path;
    if (!is_path && is_in_folder(word)) continue;
    is_replaced = is_replaced || is_path;
    line += " " + (is_path ? paths_to_read(suggestion) : shell_quoted(word));
  }
  return is_replaced ? line : std::string();
}

/// The command that unpacks `path`: an archive into a folder, any other file into a file. The target's name lacks the
/// suffix.
std::string unpack_line(const std::string& path, const std::string& program) {
  constexpr std::string_view kUnzip = "unzip ";
  if (program.starts_with(kUnzip)) return fmt::format("unzip {} {}", shell_quoted(path), program.substr(kUnzip.size()));
  const std::string name = base_name(path);
  const std::size_t dot = program == "tar" ? name.find('.', 1) : name.rfind('.');
  const std::string target = dot == std::string::npos || dot == 0 ? name + ".unpacked" : name.substr(0, dot);
  const std::string from = shell_quoted(path), to = shell_quoted(target);
  return program == "tar" ? fmt::format("mkdir {1} && tar -xf {0} -C {1}", from, to)
                          : fmt::format("{} -dc {} > {}", program, from, to);
}

/// The command to run; empty if the user must fill something in.
std::string line_of(const Suggestion& suggestion, const Error& error, const Command& command) {
  if (!error.hint().empty() || command.arguments.empty()) return {};
  if (suggestion.remedy == Remedy::kUnpack && !error.file().empty())
    return unpack_line(error.file(), suggestion.argument);
  const bool reads_other = suggestion.remedy == Remedy::kReadFolder || suggestion.remedy == Remedy::kReadFiles;
  if (reads_other) return read_instead(error.file(), suggestion, command);
  const std::string option = option_of(suggestion);
  return option.empty() ? std::string() : repeat_command(command.arguments, option);
}

std::string state_layout(const Command& command) {
  if (!command.takes_layout()) return "describe how the source is sharded: --layout FILE";
  // For this verb --layout describes the target.
  return "describe how the source is sharded: run 'shardctl gather' with --layout FILE";
}

/// True if --world-size was probably meant as --ranks: the verb writes a layout, but no layout was given.
bool means_target_ranks(const Command& command) {
  const LayoutRequest& layout = command.request.write.layout;
  return command.takes_layout() && command.request.run.world_size && !command.request.run.rank &&
         !layout.cuts_tensors() && !layout.cuts_files();
}

/// The command with --ranks N instead of --world-size N.
std::string with_target_ranks(const Command& command) {
  std::vector<std::string> words;
  for (std::size_t i = 0; i < command.arguments.size(); ++i) {
    const std::string& word = command.arguments[i];
    if (word == "--world-size") {
      ++i;
    } else if (!word.starts_with("--world-size=")) {
      words.push_back(word);
    }
  }
  return repeat_command(words, fmt::format("--ranks {}", *command.request.run.world_size));
}

/// Advice for remedies that concern the ranks of this job.
std::string advice_on_launch(const Suggestion& suggestion, const Command& command) {
  switch (suggestion.remedy) {
    case Remedy::kIgnoreLauncher:
      return "add --launcher none to ignore the launcher's variables; 'shardctl env' shows what was found";
    case Remedy::kNameLauncher:
      return "choose one with --launcher NAME";
    case Remedy::kNameRendezvous:
      return "give the address of rank 0: --rdzv HOST:PORT";
    default:
      if (means_target_ranks(command)) {
        return fmt::format("to write for {} ranks: {}", *command.request.run.world_size, with_target_ranks(command));
      }
      return fmt::format("pass --rank {} --world-size N --rdzv HOST:PORT",
                         suggestion.argument.empty() ? "R" : suggestion.argument);
  }
}

/// Advice for remedies that concern the layout of the target.
std::string advice_on_layout(Remedy remedy) {
  switch (remedy) {
    case Remedy::kCutTensors:
      return "shard the tensors with --ranks, --mesh, --layout or --like";
    case Remedy::kOneBoxPerRank:
      return "choose a layout with one box per rank, such as --ranks N";
    case Remedy::kUseMesh:
      return "define the layout with --mesh and --place";
    default:
      return "spread the tensors over several files with --shards or --max-shard-size";
  }
}

/// Advice for remedies that concern access to an object store.
std::string advice_on_store(const Suggestion& suggestion) {
  switch (suggestion.remedy) {
    case Remedy::kNameRegion:
      return "add --region " + (suggestion.argument.empty() ? "NAME" : shell_quoted(suggestion.argument));
    case Remedy::kNameEndpoint:
      return "give the address of the service: --endpoint-url URL";
    case Remedy::kAnonymous:
      return "add --anonymous if the bucket is public";
    default:
      return "drop --anonymous, and give credentials";
  }
}

/// Advice that is the same for every request; empty for other remedies.
std::string_view fixed_advice(Remedy remedy) {
  switch (remedy) {
    case Remedy::kAddPrefix:
      return "give it a name with --add-prefix NAME";
    case Remedy::kRename:
      return "rename it with --rename 'REGEX=NAME'";
    case Remedy::kDropObjects:
      return "add --objects drop to leave them out";
    case Remedy::kOpaqueGlobals:
      return "add --unknown-globals opaque to read everything else";
    case Remedy::kStateRanks:
      return "add --ranks-expected N";
    case Remedy::kNameFolder:
      return "pass a folder to -o";
    case Remedy::kReplaceDestination:
      return "add --force to replace it";
    case Remedy::kMoreMemory:
      return "raise --max-memory";
    case Remedy::kNameLike:
      return "pass another checkpoint of the same job: --like CKPT";
    case Remedy::kNameReference:
      return "pass the folder with the model's config.json: --hf-ref DIR";
    case Remedy::kMatchNames:
      return "list the names with 'shardctl inspect'; --map and --rename change them";
    case Remedy::kDequantize:
      return "add --dequantize";
    case Remedy::kOneAdapter:
      return "write one of them to a folder: shardctl export SRC -o DIR --exclude '**.OTHER**'";
    default:
      return {};
  }
}

/// The advice as an imperative.
std::string advice(const Suggestion& suggestion, const Command& command) {
  const std::string& argument = suggestion.argument;
  const auto or_word = [&](const char* word) { return argument.empty() ? std::string(word) : argument; };
  switch (suggestion.remedy) {
    case Remedy::kAddPrefix:
    case Remedy::kRename:
    case Remedy::kDropObjects:
    case Remedy::kOpaqueGlobals:
    case Remedy::kStateRanks:
    case Remedy::kNameFolder:
    case Remedy::kReplaceDestination:
    case Remedy::kMoreMemory:
    case Remedy::kNameLike:
    case Remedy::kNameReference:
    case Remedy::kMatchNames:
    case Remedy::kDequantize:
    case Remedy::kOneAdapter:
      return std::string(fixed_advice(suggestion.remedy));
    case Remedy::kCast:
      return fmt::format("convert it with --cast {}",
                         shell_quoted((argument.empty() ? "GLOB" : glob_of_name(argument)) + "=DTYPE"));
    case Remedy::kExclude:
      return fmt::format("add {} to leave it out", exclude_option(argument));
    case Remedy::kReadAs:
      return "add --from " + or_word("FORMAT");
    case Remedy::kWriteAs:
      return "add --to " + or_word("FORMAT");
    case Remedy::kStateLayout:
      return state_layout(command);
    case Remedy::kCutTensors:
    case Remedy::kOneBoxPerRank:
    case Remedy::kUseMesh:
    case Remedy::kSpreadFiles:
      return advice_on_layout(suggestion.remedy);
    case Remedy::kHoldAs:
      return "add --as " + or_word("KIND");
    case Remedy::kUseBackend:
      return "add --backend " + or_word("NAME");
    case Remedy::kIgnoreLauncher:
    case Remedy::kNameLauncher:
    case Remedy::kNameRendezvous:
    case Remedy::kNameRank:
      return advice_on_launch(suggestion, command);
    case Remedy::kStateVariable:
      return fmt::format("set it: --set {}=VALUE", or_word("NAME"));
    case Remedy::kNameRegion:
    case Remedy::kNameEndpoint:
    case Remedy::kAnonymous:
    case Remedy::kSendCredentials:
      return advice_on_store(suggestion);
    case Remedy::kReadFolder:
    case Remedy::kReadFiles:
      return "name " + paths_to_read(suggestion) + " as the source";
    case Remedy::kUnpack:
      return fmt::format("unpack it with {}", argument);
  }
  return {};
}

}  // namespace

std::string hint_text(const Error& error, const Request& request, const std::vector<std::string>& arguments) {
  const Command command{request, arguments};
  const auto has_line = [&](const Suggestion& each) { return !line_of(each, error, command).empty(); };
  const bool has_lines = std::ranges::all_of(error.suggestions(), has_line);
  std::string text = error.hint();
  for (const Suggestion& each : error.suggestions()) {
    if (!text.empty()) text += ", or ";
    text += has_lines ? line_of(each, error, command) : advice(each, command);
  }
  return text;
}

}  // namespace shard::app
