#include "apps/shardctl/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/command_line.h"
#include "apps/shardctl/remedy_text.h"
#include "apps/shardctl/value_text.h"
#include "libshard/catalog/visited.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"

namespace shard::app {
namespace {

constexpr std::int64_t kMaxLayoutBytes = 64 << 20;
constexpr std::size_t kMaxHintBytes = 2000;  ///< Of options that a hint may repeat.

bool chooses_nothing(const SelectionOptions& o) {
  return o.include.empty() && o.exclude.empty() && o.strip_prefix.empty() && o.add_prefix.empty() && o.rename.empty() &&
         o.cast.empty();
}

Selection everything(const Catalog& catalog, bool keep_objects) {
  Selection all;
  all.tensors.reserve(catalog.tensors.size());
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    all.tensors.push_back({i, tensor.dtype, tensor.name, tensor.path});
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

/// What keeps an object from being used as a value.
struct Obstacle {
  std::string is;          ///< "is a sparse tensor"; empty: nothing.
  bool droppable = false;  ///< It is no data of a tensor: --objects drop leaves it out.
};

/// The first opaque value within `value` that no earlier call met, or null.
const Value* find_opaque(const Value* value, VisitedSet& met) {
  std::vector<const Value*> open{value};
  const auto push = [&](std::span<Value* const> items) { open.insert(open.end(), items.begin(), items.end()); };
  while (!open.empty()) {
    const Value* next = open.back();
    open.pop_back();
    if (next == nullptr) continue;
    if (next->kind == ValueKind::kOpaque) return next;
    const bool leaf = next->items.empty() && next->callee == nullptr && next->extra == nullptr;
    if (leaf || !met.insert(next)) continue;
    check_walk(0, met.size());
    push(next->items);
    open.push_back(next->callee);
    if (next->extra == nullptr) continue;
    push(next->extra->list_items);
    push(next->extra->dict_items);
    open.push_back(next->extra->state);
    open.push_back(next->extra->kwargs);
  }
  return nullptr;
}

Obstacle obstacle(const Object& object, VisitedSet& met) {
  const std::string kind = foreign_tensor(object.value);
  const Value* opaque = find_opaque(object.value, met);
  if (opaque == nullptr) return kind.empty() ? Obstacle() : Obstacle{"is a " + kind, false};
  const bool is_tensor = opaque->module() == "torch" && opaque->text == "Tensor";
  if (is_tensor) return {"is a torch.Tensor inside an object", false};
  return {fmt::format("{} the unknown class {}.{}", opaque == object.value ? "is of" : "holds a value of",
                      opaque->module(), opaque->text),
          true};
}

/// Names as globs that match them, as a shell takes them.
std::string exclude_words(const std::vector<std::string>& names) {
  std::string words;
  for (const std::string& name : names) {
    words += fmt::format("{}--exclude {}", words.empty() ? "" : " ", shell_quoted(glob_of_name(name)));
  }
  return words;
}

/// The obstacles of a selection.
struct Refused {
  std::string first, is;  ///< The name of the first one, and what it is.
  std::size_t count = 0;
  std::vector<std::string> excludes;  ///< Those that must be named to be left out.
  bool must_drop = false;             ///< Some objects are left out by --objects drop.

  Error error(const Options& options, std::string_view done) const {
    const std::string more = count > 1 ? fmt::format("; nor can {} more", count - 1) : std::string();
    Error error(ErrorCode::kUnsupported, fmt::format("'{}' {}, which cannot be {}{}", first, is, done, more));
    error.of_tensor(first);
    std::string words = exclude_words(excludes);
    if (words.size() > kMaxHintBytes) return error.hint("leave them out with patterns: --exclude '**.NAME'");
    if (must_drop) words += excludes.empty() ? "--objects drop" : " --objects drop";
    return error.hint(repeat_command(options, words));
  }
};

std::string nearest_name(const std::string& glob, const std::vector<const Catalog*>& catalogs) {
  std::vector<std::string_view> names;
  for (const Catalog* catalog : catalogs) {
    if (catalog->tensors.size() > kMaxSuggestNames) continue;
    for (const Tensor& tensor : catalog->tensors) names.push_back(tensor.name);
  }
  return nearest(glob, names);
}

/// What holds for every format; readers of formats in which a rank can be missing look for that one.
void check_ranks(const OpenSource& source, const Options& options) {
  const std::optional<std::int64_t> ranks = source.catalog().world_size;
  if (!ranks && options.verb != "diff") {  // Of which one side may well be a whole one.
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("--ranks-expected: {} does not say which ranks wrote it", source.label))
        .because(fmt::format("a checkpoint of the format {} is not written by ranks", source.format->traits.name))
        .hint("drop --ranks-expected");
  }
  if (ranks && *ranks > *options.ranks_expected) {
    throw Error(ErrorCode::kCorruption, fmt::format("{} was written by more ranks than expected", source.label))
        .expected(*options.ranks_expected)
        .found(*ranks)
        .of_kind(FindingKind::kWorldSizeMismatch);
  }
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
  OpenOptions how;
  how.opaque_globals = options.opaque_globals;
  how.ranks_expected = options.ranks_expected;
  how.metadata_only = options.verb == "inspect" && !options.json;
  if (!options.source_layout.empty()) {
    opened.layout = std::make_unique<MeshLayout>(read_layout(session, options.source_layout));
    how.layout = opened.layout.get();
  }
  opened.reader = opened.format->open(source, how);
  const Catalog& catalog = opened.catalog();
  log.info(fmt::format("opened {} as {}: {} tensors, {} objects, {} files", opened.label, opened.format->traits.name,
                       catalog.tensors.size(), catalog.objects.size(), catalog.files.size()));
  if (options.ranks_expected) check_ranks(opened, options);
  return opened;
}

MeshLayout read_layout(const Session& session, const std::string& path) {
  const auto file = session.fs.open(path);
  const std::vector<std::byte> bytes = read_whole(*file, kMaxLayoutBytes);
  return parse_layout_document({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
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
                      std::string_view done, bool takes_objects) {
  VisitedSet looked_at;
  const auto usable = [&](const Object& object) { return obstacle(object, looked_at).is.empty(); };
  if (std::all_of(catalog.objects.begin(), catalog.objects.end(), usable)) return;
  SelectionOptions keeping = selection;
  keeping.keep_objects = true;
  const Selection chosen = chooses_nothing(keeping) ? everything(catalog, true) : select(catalog, keeping);
  VisitedSet met;
  Refused refused;
  for (const SelectedObject& object : chosen.objects) {
    const Obstacle found = obstacle(catalog.objects[object.source], met);
    refused.must_drop = refused.must_drop || found.droppable || (found.is.empty() && !takes_objects);
    if (found.is.empty() || (found.droppable && !selection.keep_objects)) continue;
    const std::string name(catalog.objects[object.source].name);  // --exclude sees source names.
    if (refused.count++ == 0) refused.first = name, refused.is = found.is;
    if (!found.droppable) refused.excludes.push_back(name);
  }
  if (refused.count > 0) throw refused.error(options, done);
}

std::vector<std::uint32_t> source_indices(std::span<const SelectedTensor> tensors) {
  std::vector<std::uint32_t> indices;
  indices.reserve(tensors.size());
  for (const SelectedTensor& tensor : tensors) indices.push_back(tensor.source);
  return indices;
}

}  // namespace shard::app
