#include "apps/shardctl/export_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "apps/shardctl/map_choice.h"
#include "apps/shardctl/source.h"
#include "formats/detect.h"
#include "formats/finder.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

[[noreturn]] void refuse_several(const std::string& folder, const std::vector<FoundCheckpoint>& found) {
  const std::size_t folder_bytes = join_path(folder, "").size();
  std::vector<std::string> names;
  Error error = usage(fmt::format("cannot tell which checkpoint of '{}' to export", folder)).in_file(folder);
  for (const FoundCheckpoint& each : found) {
    names.push_back(each.path.substr(folder_bytes));
    error.suggest(each.kind == FoundCheckpoint::Kind::kFiles ? Remedy::kReadFiles : Remedy::kReadFolder, each.path);
  }
  throw Error(error.because(fmt::format("it holds several: {}", fmt::join(names, ", "))));
}

}  // namespace

TakenSource take_source(const Session& session, const SourceOptions& options) {
  TakenSource taken{.label = fmt::format("{}", fmt::join(options.paths, " ")), .paths = options.paths};
  if (!options.from.empty() || options.paths.size() != 1) return taken;
  check_exists(session, options);
  if (!options.map.empty() && named_ranks(session, options)) return taken;
  const Source source{&source_store(session), options.paths};
  if (const std::vector<FoundCheckpoint> models = numbered_models(source); !models.empty()) {
    refuse_several(options.paths.front(), models);
  }
  Recognised recognised = recognise(source);
  if (recognised.format != nullptr) return taken;
  const std::vector<FoundCheckpoint> found = model_candidates(source, std::move(recognised.below));
  if (found.empty()) detect_format(source);  // Throws, as for every verb: nothing there is a model.
  if (found.size() != 1) refuse_several(options.paths.front(), found);
  return {.label = found.front().path, .paths = found.front().paths(), .is_found = true};
}

}  // namespace shard::app
