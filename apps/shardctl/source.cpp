#include "apps/shardctl/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/command_line.h"
#include "apps/shardctl/suggest.h"
#include "apps/shardctl/value_text.h"
#include "libshard/core/error.h"

namespace shard::app {
namespace {

constexpr std::size_t kMaxSuggestNames = 20'000;  ///< Beyond, looking for a near name would be felt.

bool chooses_nothing(const SelectionOptions& o) {
  return o.include.empty() && o.exclude.empty() && o.strip_prefix.empty() && o.add_prefix.empty() && o.rename.empty() &&
         o.cast.empty();
}

Selection everything(const Catalog& catalog, bool keep_objects) {
  Selection all;
  all.tensors.reserve(catalog.tensors.size());
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    all.tensors.push_back({i, tensor.name, tensor.path, tensor.dtype});
  }
  for (std::uint32_t i = 0; keep_objects && i < catalog.objects.size(); ++i) {
    all.objects.push_back({i, catalog.objects[i].name, catalog.objects[i].path});
  }
  return all;
}

bool matches_some(const std::string& glob, const Catalog& catalog) {
  const auto matches = [&](const auto& entry) { return glob_match(glob, entry.name); };
  return std::any_of(catalog.tensors.begin(), catalog.tensors.end(), matches) ||
         std::any_of(catalog.objects.begin(), catalog.objects.end(), matches);
}

/// What keeps an object from being used as a value: "is a sparse tensor", or empty.
std::string obstacle(const Object& object) {
  const std::string kind = foreign_tensor(object.value);
  if (!kind.empty()) return "is a " + kind;
  const bool opaque = object.value != nullptr && object.value->kind == ValueKind::kOpaque;
  return opaque ? fmt::format("is a {}.{} inside an object", object.value->module, object.value->text) : std::string();
}

std::string nearest_name(const std::string& glob, const std::vector<const Catalog*>& catalogs) {
  std::vector<std::string> names;
  for (const Catalog* catalog : catalogs) {
    if (catalog->tensors.size() > kMaxSuggestNames) continue;
    for (const Tensor& tensor : catalog->tensors) names.emplace_back(tensor.name);
  }
  return nearest(glob, names);
}

}  // namespace

OpenSource open_source(const Session& session, const Options& options, const std::vector<std::string>& paths,
                       Log& log) {
  OpenSource opened;
  opened.paths = paths;
  opened.label = fmt::format("{}", fmt::join(paths, " "));
  const Source source{&session.fs, paths};
  for (const std::string& path : paths) {
    if (session.fs.status(path).kind != FileKind::kAbsent) continue;
    throw Error(ErrorCode::kNotFound, path + ": no such file or folder").in_file(path);
  }
  opened.format = options.from.empty() ? &detect_format(source) : &format_named(options.from);
  log.debug(fmt::format("{}: format {}", opened.label, opened.format->traits.name));
  opened.reader = opened.format->open(source, OpenOptions{});
  const Catalog& catalog = opened.catalog();
  log.info(fmt::format("opened {} as {}: {} tensors, {} objects, {} files", opened.label, opened.format->traits.name,
                       catalog.tensors.size(), catalog.objects.size(), catalog.files.size()));
  return opened;
}

Selection choose(const Catalog& catalog, const SelectionOptions& options) {
  if (chooses_nothing(options)) return everything(catalog, options.keep_objects);
  check_include({&catalog}, options);
  return select(catalog, options);
}

void check_include(const std::vector<const Catalog*>& catalogs, const SelectionOptions& options) {
  for (const std::string& glob : options.include) {
    const bool found =
        std::any_of(catalogs.begin(), catalogs.end(), [&](const Catalog* c) { return matches_some(glob, *c); });
    if (found) continue;
    Error error(ErrorCode::kInvalidArgument, fmt::format("--include '{}' matches no tensor and no object", glob));
    const std::string near = nearest_name(glob, catalogs);
    throw near.empty() ? error.hint("'shardctl inspect' lists the names; '**' crosses dots, '*' does not")
                       : error.hint(fmt::format("did you mean '{}'?", near));
  }
}

void refuse_obstacles(const Catalog& catalog, const SelectionOptions& selection, const Options& options,
                      std::string_view done) {
  const auto usable = [](const Object& object) { return obstacle(object).empty(); };
  if (std::all_of(catalog.objects.begin(), catalog.objects.end(), usable)) return;
  SelectionOptions keeping = selection;
  keeping.keep_objects = true;
  const Selection chosen = chooses_nothing(keeping) ? everything(catalog, true) : select(catalog, keeping);
  for (const SelectedObject& object : chosen.objects) {
    const std::string what = obstacle(catalog.objects[object.source]);
    if (what.empty()) continue;
    const std::string name(catalog.objects[object.source].name);  // --exclude sees source names.
    throw Error(ErrorCode::kUnsupported, fmt::format("'{}' {}, which cannot be {}", name, what, done))
        .of_tensor(name)
        .hint(repeat_command(options, "--exclude " + shell_quoted(name)));
  }
}

std::vector<std::uint32_t> source_indices(const Selection& selection) {
  std::vector<std::uint32_t> indices;
  indices.reserve(selection.tensors.size());
  for (const SelectedTensor& tensor : selection.tensors) indices.push_back(tensor.source);
  return indices;
}

}  // namespace shard::app
