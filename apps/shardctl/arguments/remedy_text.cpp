#include "apps/shardctl/arguments/remedy_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>

#include "apps/shardctl/arguments/verb.h"
#include "apps/shardctl/request/command_text.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/core/contains.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

/// The command that failed.
struct Command {
  const Request& request;
  const std::vector<std::string>& arguments;

  bool takes_layout() const { return request.verb != nullptr && request.verb->uses.target_layout; }
};

/// The option for kExclude or kExcludeMatching.
std::string exclude_option(const Suggestion& suggestion) {
  const std::string& argument = suggestion.argument;
  if (argument.empty()) return "--exclude NAME";
  return "--exclude " + shell_quoted(suggestion.remedy == Remedy::kExclude ? glob_of_name(argument) : argument);
}

/// The option that is the whole remedy; empty if the remedy also needs a value from the user, or a different command.
std::string option_of(const Suggestion& suggestion) {
  const std::string& argument = suggestion.argument;
  switch (suggestion.remedy) {
    case Remedy::kDropObjects:
      return "--objects drop";
    case Remedy::kExclude:
    case Remedy::kExcludeMatching:
      return argument.empty() ? std::string() : exclude_option(suggestion);
    case Remedy::kReadAs:
      return argument.empty() ? std::string() : "--from " + argument;
    case Remedy::kWriteAs:
      return argument.empty() ? std::string() : "--to " + argument;
    case Remedy::kDequantize:
      return "--dequantize";
    case Remedy::kReadCopies:
      return "--weights 16bit";
    case Remedy::kNameReference:
      return argument.empty() ? std::string() : "--hf-ref " + shell_quoted(argument);
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

/// The command that unpacks `path`: an archive into a folder, any other file into a file. The target has no suffix.
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

/// True if --world-size was probably meant as --ranks, because the verb writes a layout and none was given.
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

std::string rank_options(const std::string& rank, const Command& command) {
  if (means_target_ranks(command)) {
    return fmt::format("to write for {} ranks: {}", *command.request.run.world_size, with_target_ranks(command));
  }
  return fmt::format("pass --rank {} --world-size N --rdzv HOST:PORT", rank.empty() ? "R" : rank);
}

/// Advice that depends only on the suggestion's argument.
struct Advice {
  Remedy remedy;
  std::string_view text;           ///< With {} for the argument.
  std::string_view placeholder{};  ///< Replaces an empty argument.
};
constexpr Advice kAdvice[] = {
    {Remedy::kAddPrefix, "give it a name with --add-prefix NAME"},
    {Remedy::kRename, "rename it with --rename 'REGEX=NAME'"},
    {Remedy::kDropObjects, "add --objects drop to skip them"},
    {Remedy::kOpaqueGlobals, "add --unknown-globals opaque to read everything else"},
    {Remedy::kReadAs, "add --from {}", "FORMAT"},
    {Remedy::kWriteAs, "add --to {}", "FORMAT"},
    {Remedy::kStateRanks, "add --ranks-expected N"},
    {Remedy::kCutTensors, "shard the tensors with --ranks, --mesh, --layout or --like"},
    {Remedy::kOneBoxPerRank, "choose a layout with one box per rank, such as --ranks N"},
    {Remedy::kUseMesh, "define the layout with --mesh and --place"},
    {Remedy::kSpreadFiles, "spread the tensors over several files with --shards or --max-shard-size"},
    {Remedy::kHoldAs, "add --as {}", "KIND"},
    {Remedy::kNameFolder, "pass a folder to -o"},
    {Remedy::kReplaceDestination, "add --force to replace it"},
    {Remedy::kMoreMemory, "raise --max-memory"},
    {Remedy::kUseBackend, "add --backend {}", "NAME"},
    {Remedy::kIgnoreLauncher,
     "add --launcher none to ignore the launcher's variables; 'shardctl env' shows what was found"},
    {Remedy::kNameLauncher, "choose one with --launcher NAME"},
    {Remedy::kNameRendezvous, "give the address of rank 0: --rdzv HOST:PORT"},
    {Remedy::kNameLike, "pass another checkpoint of the same job: --like CKPT"},
    {Remedy::kNameReference, "pass the folder with the model's config.json: --hf-ref {}", "DIR"},
    {Remedy::kStateVariable, "set it: --set {}=VALUE", "NAME"},
    {Remedy::kMatchNames,
     "list the names with 'shardctl inspect'; --map and --rename change them; for an adapter of transformers 5: "
     "shardctl gather SRC -o NEW --to-map hf-v5"},
    {Remedy::kFuseExperts,
     "fuse the base model's experts first: shardctl gather SRC -o FUSED --to-map hf-v5; --map hf-v5 undoes that"},
    {Remedy::kDequantize, "add --dequantize"},
    {Remedy::kReadCopies, "add --weights 16bit"},
    {Remedy::kOneAdapter, "write one of them to a folder: shardctl export SRC -o DIR --exclude '**.OTHER**'"},
    {Remedy::kNameEndpoint, "give the address of the service: --endpoint-url URL"},
    {Remedy::kAnonymous, "add --anonymous if the bucket is public"},
    {Remedy::kSendCredentials, "drop --anonymous, and give credentials"},
    {Remedy::kUnpack, "unpack it with {}"},
};
constexpr int kOthers = 8;  ///< The cases of `advice`.
static_assert(std::size(kAdvice) + kOthers == kRemedyCount, "a remedy has no advice");

/// The advice as an imperative.
std::string advice(const Suggestion& suggestion, const Command& command) {
  const std::string& argument = suggestion.argument;
  switch (suggestion.remedy) {
    case Remedy::kCast:
      return fmt::format("convert it with --cast {}",
                         shell_quoted((argument.empty() ? "GLOB" : glob_of_name(argument)) + "=DTYPE"));
    case Remedy::kExclude:
      return fmt::format("add {} to skip it", exclude_option(suggestion));
    case Remedy::kExcludeMatching:
      return fmt::format("add {} to skip them", exclude_option(suggestion));
    case Remedy::kStateLayout:
      return state_layout(command);
    case Remedy::kNameRank:
      return rank_options(argument, command);
    case Remedy::kNameRegion:
      return "add --region " + (argument.empty() ? "NAME" : shell_quoted(argument));
    case Remedy::kReadFolder:
    case Remedy::kReadFiles:
      return "name " + paths_to_read(suggestion) + " as the source";
    default:
      const Advice& fixed = *std::ranges::find(kAdvice, suggestion.remedy, &Advice::remedy);
      return fmt::format(fmt::runtime(fixed.text), argument.empty() ? fixed.placeholder : std::string_view(argument));
  }
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
