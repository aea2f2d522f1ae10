#include "apps/shardctl/source/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/source/cast_choice.h"
#include "apps/shardctl/source/map_choice.h"
#include "apps/shardctl/source/placeholder_file.h"
#include "formats/detect.h"
#include "formats/parts/hf_index/folder_names.h"
#include "formats/registry.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"
#include "libshard/io/paths.h"
#include "libshard/job/file_holders.h"
#include "libshard/map/documents/layout_document.h"
#include "libshard/repair/salvaged_reader.h"

namespace shard::app {
namespace {

constexpr std::int64_t kMaxLayoutBytes = 64 << 20;

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
  if (keep_objects) all.objects.reserve(catalog.objects.size());
  for (std::uint32_t i = 0; keep_objects && i < catalog.objects.size(); ++i) {
    all.objects.push_back({i, catalog.objects[i].name, catalog.objects[i].path});
  }
  return all;
}

/// Marks the globs that match at least one tensor or object.
void note_used(const GlobSet& globs, const Catalog& catalog, std::vector<bool>& used) {
  const auto note = [&](const auto& entry) {
    for (const std::size_t i : globs.matching(entry.name)) used[i] = true;
  };
  std::ranges::for_each(catalog.tensors, note);
  std::ranges::for_each(catalog.objects, note);
}

std::string nearest_name(const std::string& glob, const std::vector<const Catalog*>& catalogs) {
  std::vector<std::string_view> names;
  for (const Catalog* catalog : catalogs) {
    if (catalog->tensors.size() > kMaxSuggestNames) continue;
    for (const Tensor& tensor : catalog->tensors) names.push_back(tensor.name);
  }
  return nearest(glob, names);
}

bool matches_any(const std::string& glob, const std::vector<const Catalog*>& catalogs) {
  const GlobSet globs({glob});
  std::vector<bool> used(1);
  for (const Catalog* catalog : catalogs) note_used(globs, *catalog, used);
  return used.front();
}

/// Checks --ranks-expected for every format. Missing ranks are found by the readers of formats in which a rank can be
/// missing.
void check_ranks(const OpenSource& source, std::int64_t expected, bool may_lack_ranks, Findings& findings) {
  const std::optional<std::int64_t> ranks = source.catalog().world_size;
  if (!ranks && !may_lack_ranks) {
    throw usage(fmt::format("cannot check --ranks-expected: {} does not record which ranks wrote it", source.label))
        .because(fmt::format("{} checkpoints do not record ranks", source.format->traits.name))
        .hint("drop --ranks-expected");
  }
  if (ranks && *ranks > expected) {
    findings.report(
        Error(ErrorCode::kCorruption, fmt::format("{} was written by more ranks than expected", source.label))
            .expected(expected)
            .found(*ranks)
            .of_kind(FindingKind::kWorldSizeMismatch));
  }
}

/// Selects the items that a repair copies unchanged; null: all.
IsWanted wanted_by(const SelectionOptions* options) {
  if (options == nullptr) return {};
  const auto include = std::make_shared<const GlobSet>(options->include);
  const auto exclude = std::make_shared<const GlobSet>(options->exclude);
  return [include, exclude, keep_objects = options->keep_objects](const Originals::Kept& kept) {
    if (kept.is_object && !keep_objects) return false;
    return (include->empty() || include->matches(kept.name)) && !exclude->matches(kept.name);
  };
}

}  // namespace

/// True for "ORG/NAME", the form of model names on the Hugging Face Hub: two parts, without a format's suffix, and not
/// a path.
bool is_hub_name(std::string_view path) {
  const std::size_t slash = path.find('/');
  if (slash == 0 || slash == std::string_view::npos || slash != path.rfind('/') || slash + 1 == path.size())
    return false;
  const auto is_part_of_name = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == '.' || c == '/';
  };
  return path.front() != '.' && std::ranges::all_of(path, is_part_of_name) && format_of_suffix(path).empty();
}

void check_exists(const Session& session, const ReadRequest& read) {
  for (const std::string& path : read.paths) {
    const SourceStore& store = source_store(session);
    if (store.status(path).kind != FileKind::kAbsent) continue;
    if (const auto stand_in = placeholder_at(store, path)) throw Error(*stand_in);
    Error absent(ErrorCode::kNotFound, path + ": no such file or folder");
    if (is_hub_name(path)) {
      absent.because("it looks like the name of a model on the Hugging Face Hub")
          .hint(fmt::format("read it from the Hub as hf://{0}, or download it: hf download {0} --local-dir {1}", path,
                            base_name(path)));
    }
    throw absent.in_file(path);
  }
}

void check_choices(const ReadRequest& read, std::initializer_list<const OpenSource*> sources) {
  for (const FormatOption& option : format_options(&Format::read_options)) {
    const auto has_it = [&](const OpenSource* source) { return has_option(source->format->read_options, option.name); };
    const bool is_stated = std::ranges::find(read.stated_choices, option.name) != read.stated_choices.end();
    const bool is_default = choice(read.choices, option) == option.words.front();
    if (!is_stated || is_default || std::ranges::any_of(sources, has_it)) continue;
    const OpenSource& source = **sources.begin();
    throw usage(fmt::format("--{} applies only to {}, but {} is {}", option.name, option.owners, source.label,
                            source.format->traits.name))
        .because(option.others)
        .hint(fmt::format("drop --{}", option.name));
  }
}

OpenSource open_source(const Session& session, const ReadRequest& read, Log& log, OpenRequest request) {
  OpenSource opened;
  opened.paths = read.paths;
  opened.label = fmt::format("{}", fmt::join(read.paths, " "));
  const SourceStore& store = request.store != nullptr ? *request.store : source_store(session);
  const Source source{&store, read.paths};
  check_exists(session, read);
  const Format* const of_ranks =
      read.map.empty() ? nullptr : &map_format(open_map(session, read.map).files_of_ranks().container);
  if (of_ranks != nullptr && (read.from.empty() || read.from == of_ranks->traits.name)) {
    opened.rank_paths = named_ranks(session, read);
  }
  opened.format = opened.rank_paths ? of_ranks : read.from.empty() ? &detect_format(source) : &format_named(read.from);
  log.debug(fmt::format("{}: format {}", opened.label, opened.format->traits.name));
  OpenOptions how;
  how.findings = request.findings;
  how.opaque_globals = opened.opaque_globals = read.opaque_globals;
  how.choices = read.choices;
  how.ranks_expected = read.ranks_expected;
  how.metadata_only = request.metadata_only;
  if (!read.layout.empty()) {
    opened.layout = std::make_unique<MeshLayout>(read_layout(session, read.layout));
    how.layout = opened.layout.get();
  }
  if (!read.map.empty()) how.own_tensors = open_map(session, read.map).has_mesh();
  if (opened.rank_paths) how.rank_paths = &*opened.rank_paths;
  how.like = request.like;
  if (request.salvage != nullptr) how.findings = request.salvage;
  opened.reader = opened.format->open(source, how);
  if (read.dequantize) dequantize(session, *read.dequantize, opened, *how.findings, log);
  if (request.salvage != nullptr)
    opened.reader =
        without_losses(std::move(opened.reader), *request.salvage, worker_count(session), wanted_by(request.selection));
  if (!read.map.empty() && !request.keeps_map) undo_map(session, read, request.selection, opened, log);
  if (!request.may_lack_choices) check_choices(read, {&opened});
  const Catalog& catalog = opened.catalog();
  log.info(fmt::format("opened {} as {}: {} tensors, {} objects, {} files", opened.label, opened.format->traits.name,
                       catalog.tensors.size(), catalog.objects.size(), catalog.files.size()));
  if (read.ranks_expected) {
    check_ranks(opened, *read.ranks_expected, request.may_lack_ranks, *request.findings);
  }
  if (session.peer_store != nullptr && !request.of_other_ranks && catalog.rank_files) {
    check_file_ranks(catalog, find_holders(*opened.reader, *session.peer_store), session.group->size());
  }
  return opened;
}

void warn_of_source(const Session& session, const OpenSource& source) {
  if (!is_rank_zero(session)) return;
  std::vector<std::string> warnings = source.catalog().warnings;
  std::erase_if(warnings, hf_index::is_others_warning);
  warn_all(session, warnings);
}

MeshLayout read_layout(const Session& session, const std::string& path) {
  const auto file = source_store(session).open(path);
  const std::vector<std::byte> bytes = read_whole(*file, kMaxLayoutBytes);
  return parse_layout_document({reinterpret_cast<const char*>(bytes.data()), bytes.size()}, path);
}

Selection choose(const Catalog& catalog, const SelectionOptions& options) {
  if (chooses_nothing(options)) return everything(catalog, options.keep_objects);
  check_include({&catalog}, options);
  return select(catalog, options);
}

void check_include(const std::vector<const Catalog*>& catalogs, const SelectionOptions& options) {
  if (options.include.empty()) return;
  const GlobSet globs(options.include);
  std::vector<bool> used(options.include.size());
  for (const Catalog* catalog : catalogs) note_used(globs, *catalog, used);
  const auto unused = std::ranges::find(used, false);
  if (unused == used.end()) return;
  const std::string& glob = options.include[static_cast<std::size_t>(unused - used.begin())];
  Error error = usage(fmt::format("--include '{}' matches no tensor or object", glob));
  const std::string crossing = crossing_dots(glob);
  const std::string near = matches_any(crossing, catalogs) ? crossing : nearest_name(glob, catalogs);
  throw near.empty() ? error.hint("list the names with 'shardctl inspect'; '**' crosses dots, '*' does not")
                     : error.hint(fmt::format("did you mean '{}'?", near));
}

std::vector<std::uint32_t> source_indices(std::span<const SelectedTensor> tensors) {
  std::vector<std::uint32_t> indices;
  indices.reserve(tensors.size());
  for (const SelectedTensor& tensor : tensors) indices.push_back(tensor.source);
  return indices;
}

}  // namespace shard::app
