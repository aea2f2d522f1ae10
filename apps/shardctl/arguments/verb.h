/// \file
/// Verb: all that the program knows about one of its verbs. The table behind verbs() is the only list of them: help,
/// completion, the parser and the dispatcher go by it.
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

/// Which groups of options a verb takes, and what follows from them.
struct Uses {
  bool sources = false;        ///< Reads checkpoints: SRC and the options of source,
  bool selection = false;      ///< and those of selection.
  bool target = false;         ///< Writes DST.
  bool page = false;           ///< Writes a page where --html asks for one.
  bool target_layout = false;  ///< Cuts tensors: --layout is the target's, not the source's.
  bool numbers = false;        ///< Takes what a model map's numbers come from,
  bool maps = false;           ///< and the maps themselves.
  bool rank_options = false;   ///< Takes the options of ranks,
  bool ranks = false;          ///< and its ranks meet and work together.
};

struct Verb {
  std::string_view name;
  std::string_view usage;      ///< After "shardctl ".
  std::string_view summary;    ///< One line of the list of verbs.
  std::string_view details{};  ///< A paragraph; may be empty.
  std::string_view examples;
  std::string_view success;      ///< What exit code 0 means.
  std::string_view no_answer{};  ///< What exit code 1 means; empty: the verb answers no question.
  Uses uses{};
  bool each_source = false;       ///< Each SRC is a checkpoint of its own.
  bool sources_as_named = false;  ///< A folder that is no checkpoint does not stand for the only one below it.
  TargetDefaults target{};
  /// Adds the options that no other verb has. May be null.
  void (*add_options)(CLI::App& app, Request& request) = nullptr;
  /// Refuses what cannot be meant, before the checks of all verbs. May be null. \throws Error kInvalidArgument
  void (*check)(const Session& session, Request& request) = nullptr;
  /// \returns the exit code; failures are exceptions.
  int (*run)(Session& session, const Request& request) = nullptr;
  /// The words that may follow the verb; null: files.
  std::vector<std::string_view> (*words)() = nullptr;
};

/// In the order in which help lists them.
std::span<const Verb> verbs();
/// The verb of that name, or null.
const Verb* find_verb(std::string_view name);
std::vector<std::string_view> verb_names();

}  // namespace shard::app
