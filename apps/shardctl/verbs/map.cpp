#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>

#include "apps/shardctl/render/json_parts.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/progress.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/text/text_sink.h"
#include "apps/shardctl/verbs/verbs.h"
#include "formats/open/map_choice.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/core/short_text.h"
#include "libshard/map/documents/builtin_maps.h"
#include "libshard/map/passes/undo.h"

namespace shard::app {
namespace {

constexpr int kExitUnmatched = 1;

std::string description_of(const BuiltinMap& map) {
  return nlohmann::json::parse(map.text).value("description", std::string());
}

void print_list(Session& session) {
  if (session.common.json) {
    JsonWriter json(session.out);
    json.document("shardctl.maps/1", [&] {
      json.key("maps"), json.object_lines(2, builtin_maps(), [&](const BuiltinMap& map) {
        json.key("name"), json.string(map.name);
        json.key("description"), json.string(description_of(map));
      });
    });
    return;
  }
  std::size_t width = 0;
  for (const BuiltinMap& map : builtin_maps()) width = std::max(width, map.name.size());
  TextSink sink(session.out);
  for (const BuiltinMap& map : builtin_maps())
    sink.line(fmt::format("{:{}}  {}", map.name, width, description_of(map)));
}

/// Prints the document. It is valid, because opening it parsed it.
void print_document(Session& session, const std::string& name) {
  const std::string& text = open_map(source_place(session), name).text;
  TextSink sink(session.out);
  sink.lines(std::string_view(text).substr(0, text.find_last_not_of('\n') + 1));
}

void print_check(Session& session, const std::string& name, const UndoneMap& undone,
                 const std::vector<std::string>& unmatched, std::int64_t stored, std::size_t logical) {
  const std::int64_t mapped = stored - undone.copied() - undone.dropped() - std::ssize(undone.left_out());
  if (session.common.json) {
    JsonWriter json(session.out);
    json.document("shardctl.map_check/1", [&] {
      json.key("map"), json.string(name);
      json.key("stored"), json.number(stored);
      json.key("mapped"), json.number(mapped);
      json.key("copied"), json.number(undone.copied());
      json.key("dropped"), json.number(undone.dropped());
      json.key("tensors"), json.number(logical);
      write_texts(json, "unmatched", unmatched);
      write_texts(json, "warnings", undone.warnings());
    });
    return;
  }
  warn_all(session, undone.warnings());
  TextSink sink(session.out);
  for (const std::string& each : unmatched) sink.line(fmt::format("unmatched {}", each));
  sink.line(fmt::format("{}: {} mapped, {} unchanged, {} dropped, {} unmatched; {}", plural(stored, "stored tensor"),
                        mapped, undone.copied(), undone.dropped(), unmatched.size(), plural(logical, "tensor")));
}

/// Undoes the map and skips the names that no rule matches, unless the map copies them.
UndoneMap undo_on(const Session& session, const OpenSource& source, const ModelMap& map, const std::string& name) try {
  const bool copies = map.document().copies_unmatched;
  return UndoneMap(source.catalog(), map, [copies](std::string_view) { return !copies; });
} catch (Error& error) {
  throw in_map(source_place(session), name, error);
}

int check_map_on(Session& session, ReadRequest read, const SelectionOptions& select, const std::string& name) {
  Log log(session);
  read.map = name;
  const OpenSource source = open_source(session, read, log, {.metadata_only = true, .keeps_map = true});
  const ModelMap map = choose_map(source_place(session), name, read.numbers, source, MapUse::kUndo, ranks_of(source));
  const UndoneMap undone = undo_on(session, source, map, name);
  const Catalog logical = undone.make_catalog(source.catalog());
  check_globs({&source.catalog(), &logical}, select);
  std::vector<std::string> unmatched = undone.left_out();
  std::erase_if(unmatched, std::not_fn(name_filter(select)));
  print_check(session, name, undone, unmatched, std::ssize(source.catalog().tensors), logical.tensors.size());
  return unmatched.empty() ? 0 : kExitUnmatched;
}

}  // namespace

std::vector<std::string_view> map_words() { return {"list", "show", "check"}; }

void check_map(const Session&, Request& request) {
  std::vector<std::string>& words = request.read.paths;
  const std::vector<std::string_view> actions = map_words();
  const std::string known = fmt::format("{}", fmt::join(actions, ", "));
  if (words.empty()) throw usage("map needs an action: list, show or check").hint("give one of " + known);
  request.map.action = words.front();
  if (std::ranges::find(actions, words.front()) == actions.end()) {
    throw usage(fmt::format("map has no action '{}'", words.front()))
        .expected(known)
        .found(words.front())
        .hint("give one of " + known);
  }
  const std::size_t least = request.map.action == "list" ? 1 : request.map.action == "show" ? 2 : 3;
  if (words.size() < least || (least < 3 && words.size() > least)) {
    throw usage(fmt::format("map {} takes {}", request.map.action,
                            least == 1   ? "nothing else"
                            : least == 2 ? "the name of one map"
                                         : "a map and a checkpoint"))
        .hint(least == 1   ? "run 'shardctl map list'"
              : least == 2 ? "run 'shardctl map show NAME'; 'shardctl map list' has the names"
                           : "run 'shardctl map check NAME SRC'");
  }
  if (least > 1) request.map.name = words[1];
  words.erase(words.begin(), words.begin() + static_cast<std::ptrdiff_t>(std::min(least, std::size_t{2})));
}

int run_map(Session& session, const Request& request) {
  if (request.map.action == "list") return print_list(session), 0;
  if (request.map.action == "show") return print_document(session, request.map.name), 0;
  return check_map_on(session, request.read, request.select, request.map.name);
}

}  // namespace shard::app
