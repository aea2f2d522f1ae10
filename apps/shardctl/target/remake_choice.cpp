#include "apps/shardctl/target/remake_choice.h"

#include <fmt/format.h>

#include <string_view>

#include "libshard/core/error.h"

namespace shard::app {
namespace {

/// The first option that asks for something else than all of the source, or empty.
std::string_view find_change(const CopyRequest& request) {
  const SelectionOptions& selection = request.select;
  const LayoutRequest& layout = request.write.layout;
  const struct {
    bool is_given;
    std::string_view option;
  } changes[] = {{!selection.include.empty(), "--include"},
                 {!selection.exclude.empty(), "--exclude"},
                 {!selection.strip_prefix.empty(), "--strip-prefix"},
                 {!selection.add_prefix.empty(), "--add-prefix"},
                 {!selection.rename.empty(), "--rename"},
                 {!selection.cast.empty(), "--cast"},
                 {!selection.keep_objects, "--objects drop"},
                 {!request.read.map.empty(), "--map"},
                 {!request.write.map.empty(), "--to-map"},
                 {request.read.weights != Weights::kMasters, "--weights"},
                 {layout.dim.has_value(), "--dim"},
                 {!layout.mesh.empty(), "--mesh"},
                 {!layout.layout.empty(), "--layout"},
                 {!layout.like.empty(), "--like"}};
  for (const auto& [is_given, option] : changes) {
    if (is_given) return option;
  }
  return {};
}

}  // namespace

Remake open_remake(const Session& session, const CopyRequest& request, const Format& format, const OpenSource& source) {
  const std::string_view name = format.traits.name;
  if (!request.write.defaults.remakes) {
    throw Error(ErrorCode::kUnsupported, fmt::format("{} cannot write {}", session.command.verb, name))
        .hint(fmt::format("use reshard or convert with --to {}", name));
  }
  if (source.format->traits.name != format.remakes) {
    throw Error(ErrorCode::kUnsupported, fmt::format("--to {} needs a {} source", name, format.remakes))
        .because("its files hold more than named tensors and objects")
        .found(source.format->traits.name);
  }
  if (const std::string_view option = find_change(request); !option.empty()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write {} with {}", name, option))
        .because("this format is always written whole and unchanged")
        .hint(fmt::format("drop {}", option));
  }
  const Source opened{&source_store(session), source.paths};
  OpenOptions how;
  how.opaque_globals = request.read.opaque_globals;
  how.ranks_expected = request.read.ranks_expected;
  return format.remake(opened, how, {.ranks = request.write.layout.ranks});
}

}  // namespace shard::app
