/// \file
/// Verb: everything the program knows about one of its verbs. The table behind verbs() is their only list. Help,
/// completion, the parser and the dispatcher use it.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"

namespace CLI {
class App;
}

namespace shard::app {

/// The groups of options that a verb takes, and the consequences.
struct Uses {
  bool sources = false;        ///< Reads checkpoints: takes SRC and the source options.
  bool choice = false;         ///< Takes --include and --exclude.
  bool selection = false;      ///< Takes all options for selection and names.
  bool target = false;         ///< Writes DST.
  bool page = false;           ///< Writes an HTML page if --html asks for one.
  bool target_layout = false;  ///< Shards tensors. --layout then describes the target, not the source.
  bool numbers = false;        ///< Takes the options that supply the numbers of a model map.
  bool maps = false;           ///< Takes the options that name maps.
  bool compares = false;       ///< Takes a second checkpoint, with its own map.
  bool computes = false;       ///< Takes the options for weights that are computed. Verbs with maps do so too.
  bool averages = false;       ///< Takes the options of averages. Their --weights replaces the source's.
  bool rank_options = false;   ///< Takes the options of ranks.
  bool ranks = false;          ///< Its ranks connect and work together.

  /// Whether --to-map has something to apply to.
  constexpr bool takes_second_map() const { return maps && (target || compares); }
};

struct Verb {
  std::string_view name;
  std::string_view usage;      ///< After "shardctl ".
  std::string_view summary;    ///< One line in the list of verbs.
  std::string_view details{};  ///< A paragraph; may be empty.
  std::string_view examples;
  std::string_view success{};    ///< The meaning of exit code 0, if not that the job is done.
  std::string_view no_answer{};  ///< The meaning of exit code 1; empty: the verb does not answer a question.
  Uses uses{};
  bool each_source = false;       ///< Each SRC is a separate checkpoint.
  bool sources_as_named = false;  ///< Finds the checkpoint in a folder by its own rules.
  TargetDefaults target{};
  /// Adds the options that no other verb has. May be null.
  void (*add_options)(CLI::App& app, Request& request) = nullptr;
  /// Rejects contradicting requests before the checks that all verbs share. May be null. \throws Error kInvalidArgument
  void (*check)(const Session& session, Request& request) = nullptr;
  /// \returns the exit code; failures are exceptions.
  int (*run)(Session& session, const Request& request) = nullptr;
  /// The words that may follow the verb; null: files follow it.
  std::vector<std::string_view> (*words)() = nullptr;
};

/// All verbs in the order in which help lists them.
std::span<const Verb> verbs();
/// The verb with that name, or null.
const Verb* find_verb(std::string_view name);
std::vector<std::string_view> verb_names();

}  // namespace shard::app
