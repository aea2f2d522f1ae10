#include "apps/shardctl/source/source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "apps/shardctl/request/command_text.h"
#include "apps/shardctl/session/ranks.h"
#include "formats/parts/hf_index/folder_names.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/compute/computed_reader.h"
#include "libshard/core/error.h"
#include "libshard/core/nearest.h"
#include "libshard/core/short_text.h"
#include "libshard/job/file_holders.h"

namespace shard::app {
namespace {

bool chooses_all(const SelectionOptions& o) {
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

/// Replaces "{0..31}" and "{a,b}", which are no globs here, by "*". The text of inspect folds layers in this form.
std::string without_braces(std::string glob) {
  for (std::size_t open = glob.find('{'); open != std::string::npos; open = glob.find('{', open)) {
    const std::size_t close = glob.find('}', open);
    if (close == std::string::npos) break;
    glob.replace(open, close - open + 1, "*");
  }
  return glob;
}

/// The first glob that matches no tensor or object.
std::optional<std::string> first_unused(const std::vector<std::string>& globs,
                                        const std::vector<const Catalog*>& catalogs) {
  if (globs.empty()) return std::nullopt;
  const GlobSet set(globs);
  std::vector<bool> used(globs.size());
  for (const Catalog* catalog : catalogs) note_used(set, *catalog, used);
  const auto unused = std::ranges::find(used, false);
  if (unused == used.end()) return std::nullopt;
  return globs[static_cast<std::size_t>(unused - used.begin())];
}

bool matches_any(const std::string& glob, const std::vector<const Catalog*>& catalogs) {
  return !first_unused({glob}, catalogs);
}

/// The globs that commas separate, except for commas in braces.
std::vector<std::string> globs_in(std::string_view list) {
  std::vector<std::string> globs(1);
  int open = 0;
  for (const char c : list) {
    open = std::max(0, open + (c == '{' ? 1 : 0) - (c == '}' ? 1 : 0));
    if (c == ',' && open == 0) {
      globs.emplace_back();
    } else {
      globs.back() += c;
    }
  }
  std::erase(globs, std::string());
  return globs;
}

/// The error for a glob that matches nothing, with other globs that may be meant.
Error matches_nothing(std::string_view option, const std::string& glob, const std::vector<const Catalog*>& catalogs) {
  Error error = usage(fmt::format("{} '{}' matches no tensor or object", option, glob));
  if (const std::vector<std::string> globs = globs_in(glob); globs.size() > 1) {
    std::string words;
    for (const std::string& each : globs) words += fmt::format(" {} {}", option, shell_quoted(each));
    return error.because("a comma does not separate globs").hint("give each glob separately:" + words);
  }
  std::string near = nearest_name(glob, catalogs);
  for (const std::string& similar : {crossing_dots(glob), without_braces(glob)}) {
    if (matches_any(similar, catalogs)) near = similar;
  }
  return near.empty() ? error.hint("list the names with 'shardctl inspect'; '**' crosses dots, '*' does not")
                      : error.hint(fmt::format("did you mean '{}'?", near));
}

/// Checks --ranks-expected for every format. Readers find missing ranks.
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

}  // namespace

void check_choices(const ReadRequest& read, std::span<const OpenSource* const> sources) {
  for (const FormatOption& option : format_options(&Format::read_options)) {
    const auto has_it = [&](const OpenSource* source) { return has_option(source->format->read_options, option.name); };
    const bool is_stated = std::ranges::find(read.stated_choices, option.name) != read.stated_choices.end();
    const bool is_default = choice(read.choices, option) == option.words.front();
    if (!is_stated || is_default || std::ranges::any_of(sources, has_it)) continue;
    const OpenSource& source = *sources.front();
    throw usage(fmt::format("--{} applies only to {}, but {} is {}", option.name, option.owners, source.label,
                            source.format->traits.name))
        .because(option.others)
        .hint(fmt::format("drop --{}", option.name));
  }
}

SourcePlace source_place(const Session& session) {
  return {source_store(session), session.opened_maps, worker_count(session)};
}

OnStep notes_of(const Session& session) {
  return [&session](const std::string& line) {
    if (is_rank_zero(session)) note(session, fmt::format("{}: {}", session.command.verb, line));
  };
}

OpenSource open_source(const Session& session, const ReadRequest& read, Log& log, OpenRequest request) {
  const SourceStore& store = request.store != nullptr ? *request.store : source_store(session);
  const SourceOptions options{.metadata_only = request.metadata_only,
                              .salvage = request.salvage,
                              .keeps_map = request.keeps_map,
                              .selection = request.selection,
                              .like = request.like,
                              .findings = request.findings,
                              .on_computed = [&session](const auto& reader) { check_operands(session, reader); },
                              .on_step = [&log](const std::string& line) { log.info(line); },
                              .on_detail = [&log](const std::string& line) { log.debug(line); },
                              .on_note = notes_of(session)};
  OpenSource opened = shard::open_source({store, session.opened_maps, worker_count(session)}, read, options);
  if (!request.may_lack_choices) check_choices(read, std::array<const OpenSource*, 1>{&opened});
  const Catalog& catalog = opened.catalog();
  log.info(fmt::format("opened {} as {}: {}, {}, {}", opened.label, opened.format->traits.name,
                       plural(std::ssize(catalog.tensors), "tensor"), plural(std::ssize(catalog.objects), "object"),
                       plural(std::ssize(catalog.files), "file")));
  if (read.ranks_expected) {
    check_ranks(opened, *read.ranks_expected, request.may_lack_ranks, *request.findings);
  }
  if (session.peer_store != nullptr && !request.of_other_ranks && catalog.rank_files) {
    check_file_ranks(catalog, find_holders(*opened.reader, *session.peer_store), session.group->size());
  }
  return opened;
}

void check_operands(const Session& session, const ComputedReader& reader) {
  if (session.peer_store == nullptr) return;
  const FileHolders holders = find_holders(reader, *session.peer_store);
  for (std::size_t i = 0; i < reader.formulas().size(); ++i) {
    const std::vector<std::uint32_t> files = reader.files_of(i);
    const auto is_elsewhere = [&](std::uint32_t file) { return holders.of(file) != holders.of(files.front()); };
    const auto other = std::ranges::find_if(files, is_elsewhere);
    if (other == files.end()) continue;
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("cannot compute '{}': its operands are in files of different ranks", reader.formulas()[i].name))
        .of_tensor(reader.formulas()[i].name)
        .in_file(reader.catalog().files[*other].path)
        .hint("drop --local-input, or gather the source first");
  }
}

void warn_of_source(const Session& session, const OpenSource& source) {
  if (!is_rank_zero(session)) return;
  std::vector<std::string> warnings = source.catalog().warnings;
  std::erase_if(warnings, hf_index::is_others_warning);
  warn_all(session, warnings);
}

Selection choose(const Catalog& catalog, const SelectionOptions& options) {
  check_globs({&catalog}, options);
  return choose_unchecked(catalog, options);
}

Selection choose_unchecked(const Catalog& catalog, const SelectionOptions& options) {
  return chooses_all(options) ? everything(catalog, options.keep_objects) : select(catalog, options);
}

void check_globs(const std::vector<const Catalog*>& catalogs, const SelectionOptions& options) {
  if (const auto unused = first_unused(options.include, catalogs)) {
    throw matches_nothing("--include", *unused, catalogs);
  }
  std::vector<std::string> lists = options.exclude;  // Other globs may exclude nothing.
  std::erase_if(lists, [](const std::string& glob) { return glob.find(',') == std::string::npos; });
  if (const auto unused = first_unused(lists, catalogs)) throw matches_nothing("--exclude", *unused, catalogs);
}

std::vector<std::uint32_t> source_indices(std::span<const SelectedTensor> tensors) {
  std::vector<std::uint32_t> indices;
  indices.reserve(tensors.size());
  for (const SelectedTensor& tensor : tensors) indices.push_back(tensor.source);
  return indices;
}

}  // namespace shard::app
