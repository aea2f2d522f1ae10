#include "formats/parts/hf_index/indexed_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "libshard/core/short_text.h"
#include "libshard/io/paths.h"

namespace shard::hf_index {

namespace {

constexpr std::string_view kIndexEnd = ".index.json";

Error mismatch(const std::string& what, std::string_view name, const std::string& index) {
  return Error(ErrorCode::kCorruption, what).in_file(index).of_tensor(name).of_kind(FindingKind::kIndexMismatch);
}

Error listed_but_missing(std::string_view name, const std::string& path) {
  return Error(ErrorCode::kNotFound, fmt::format("the index names {}, which is missing", name))
      .in_file(path)
      .hint("fetch the missing file")
      .of_kind(FindingKind::kMissingFile);
}

/// The name that the weights of an index have in one file: model.safetensors for model.safetensors.index.json.
std::string_view single_file_of(std::string_view index) {
  return index.ends_with(kIndexEnd) ? index.substr(0, index.size() - kIndexEnd.size()) : std::string_view();
}

/// The file beside the index that transformers reads instead of those in the index. (diffusers prefers the index.)
std::string_view preferred_to(std::string_view index) {
  const std::string_view single = single_file_of(index);
  return single == "model.safetensors" || single == "pytorch_model.bin" ? single : std::string_view();
}

/// Two sets that differ only in the count or the variant, or null.
std::pair<const CountedSet*, const CountedSet*> rivals(const std::vector<CountedSet>& sets) {
  const auto same = [](const CountedSet& a, const CountedSet& b) { return a.base == b.base; };
  const auto first = std::ranges::adjacent_find(sets, same);  // The sets are sorted by base.
  return first == sets.end() ? std::pair<const CountedSet*, const CountedSet*>() : std::pair(&*first, &*(first + 1));
}

/// "model-*-of-00003.safetensors (all 3 parts)", or which part is missing.
std::string how_many(const CountedSet& set) {
  return fmt::format("{} ({})", set.pattern(),
                     set.missing.empty() ? fmt::format("all {} parts", set.names.size())
                                         : fmt::format("{} parts, {} is missing", set.names.size(), set.missing));
}

/// Suggests complete sets first.
Error several_sets(const std::string& folder, const std::vector<CountedSet>& sets, const CountedSet& a,
                   const CountedSet& b) {
  Error error(ErrorCode::kCorruption, "the folder contains parts of more than one checkpoint, and no index");
  error.in_file(folder).because(fmt::format("{} and {}", how_many(a), how_many(b)));
  for (const bool is_whole : {true, false}) {
    for (const CountedSet& set : sets) {
      if (set.missing.empty() == is_whole) error.suggest(Remedy::kReadFiles, join_path(folder, set.pattern()));
    }
  }
  return error;
}

/// A finding for files with base names `names` that were named one by one: other parts exist and are not read. It is
/// not a fault, because a user may select some parts. Nothing if all parts are named, or their names do not count them.
std::optional<Error> unnamed_parts(const std::vector<std::string>& names, std::string_view suffix) {
  const std::string missing = missing_part(names, suffix);
  if (missing.empty()) return std::nullopt;
  return Error(
             ErrorCode::kNotFound,
             fmt::format("other parts of this checkpoint are not read: their names would be {} and the like", missing))
      .in_file(names.front())
      .of_kind(FindingKind::kMissingFile)
      .because("only the files that were named are read");
}

/// The error for parts of the index's own checkpoint that it does not list, or nothing. `names` are the files of the
/// folder, `listed` those of the index, sorted.
std::optional<Error> lacks_parts(const std::string& index, const std::vector<std::string>& names,
                                 const std::vector<std::string>& listed, std::string_view suffix) {
  const std::vector<std::string> parts = unlisted_parts(names, listed, suffix);
  if (parts.empty()) return std::nullopt;
  return Error(ErrorCode::kCorruption, listed.empty() ? "the index names no file, but files are beside it"
                                                      : "the index does not name all parts of its checkpoint")
      .in_file(index)
      .of_kind(FindingKind::kIndexMismatch)
      .because(fmt::format("their tensors would be skipped: {}", first_names(parts)))
      .hint("download the index again, or rebuild it by repairing the checkpoint");
}

/// An index that lists missing files although its folder contains a complete checkpoint.
struct StaleIndex {
  Error error;                  ///< Names the folder, instead of which the complete set may be read.
  WholeSet whole;               ///< Not empty.
  bool is_all_missing = false;  ///< None of the files that the index lists exists.
};

/// Returns the fault if the index is stale in this sense. `names` and `listed` are as for lacks_parts.
std::optional<StaleIndex> find_stale(const SourceStore& store, const std::string& folder, const std::string& index,
                                     const std::vector<std::string>& names, const std::vector<std::string>& listed,
                                     std::string_view suffix) {
  const auto is_missing = [&](const std::string& name) { return !store.exists(join_path(folder, name)); };
  const auto missing = std::ranges::find_if(listed, is_missing);
  if (missing == listed.end()) return std::nullopt;
  WholeSet whole = whole_set_beside(names, listed, single_file_of(index), suffix);
  if (whole.names.empty()) return std::nullopt;
  Error error(ErrorCode::kNotFound, fmt::format("{} names {}, which is missing", index, *missing));
  error.in_file(folder).of_kind(FindingKind::kMissingFile);
  error.because(
      fmt::format("the folder contains a whole checkpoint that the index does not name: {}", first_names(whole.names)));
  return StaleIndex{std::move(error), std::move(whole), std::ranges::all_of(listed, is_missing)};
}

Error extra_file(const std::string& name, const std::string& index) {
  return Error(ErrorCode::kCorruption, "the index does not name this file")
      .in_file(name)
      .of_kind(FindingKind::kExtraFile)
      .because(name == preferred_to(index) ? "transformers reads it instead of the files in the index"
                                           : "readers of the checkpoint skip it");
}

}  // namespace

std::optional<Error> counted_fault(const std::string& folder, const std::vector<std::string>& names,
                                   std::string_view suffix) {
  const std::vector<CountedSet> sets = counted_sets(names, suffix);
  if (const auto [a, b] = rivals(sets); a != nullptr) return several_sets(folder, sets, *a, *b);
  const std::string missing = missing_part(names, suffix);
  if (missing.empty()) return std::nullopt;
  return Error(ErrorCode::kNotFound, "a part is missing: the names of the others show it")
      .in_file(join_path(folder, missing))
      .of_kind(FindingKind::kMissingFile)
      .hint("download the missing file, or list the files to read one by one");
}

DataFiles files_as_given(const std::vector<std::string>& paths) {
  DataFiles files;
  files.names = paths;
  std::ranges::transform(paths, std::back_inserter(files.shown), base_name);
  const std::set<std::string_view> different(files.shown.begin(), files.shown.end());
  if (different.size() < paths.size()) files.shown = paths;
  return files;
}

std::string IndexedFolder::index_name() const { return base_name(files_.index); }

bool IndexedFolder::read_index() {
  if (files_.index.empty()) return false;
  try {
    map_ = read_weight_map(*store_.open(files_.index));
    const auto fault = lacks_parts(index_name(), files_.names, map_.files, use_.suffix);
    if (fault) (findings_.goes_on() ? throwing_findings() : findings_).report(*fault);
    check_stale();
  } catch (const Error& error) {
    if (!findings_.goes_on() || !is_damage(error)) throw;
    findings_.mend(
        fmt::format("{}: rebuilt the index from the {}: {}", index_name(), use_.rebuilt_from, reason_of(error)));
    return false;
  }
  return true;
}

/// The index may list missing files while the folder contains a complete checkpoint. A repair reads that checkpoint,
/// unless some of the index's own files exist.
void IndexedFolder::check_stale() {
  auto stale = find_stale(store_, files_.folder, index_name(), files_.names, map_.files, use_.suffix);
  if (!stale) return;
  if (use_.reads_sets) {
    stale->error.suggest(Remedy::kReadFiles, join_path(files_.folder, stale->whole.pattern));
  } else {
    stale->error.hint("repair the checkpoint, which rebuilds the index");
  }
  if (!findings_.goes_on()) return findings_.report(stale->error);
  if (!stale->is_all_missing) return;
  files_.names = files_.shown = std::move(stale->whole.names);
  throw Error(stale->error);
}

void IndexedFolder::read_files(const std::function<bool(const std::string& name, std::uint32_t file)>& read) {
  for (std::uint32_t i = 0; i < map_.files.size(); ++i) {
    const std::string& name = map_.files[i];
    const std::string path = join_path(files_.folder, name);
    const bool is_there = std::ranges::binary_search(files_.names, name) || store_.exists(path);
    was_read_.push_back(is_there && read(name, i));
    if (is_there) continue;
    if (findings_.goes_on()) {  // Whether this is a loss depends on the content of the other files.
      missing_.push_back(i);
    } else {
      findings_.report(listed_but_missing(name, path));
    }
  }
}

bool IndexedFolder::take(std::string_view tensor, std::uint32_t file) {
  WeightMapEntry* const entry = map_.find(tensor);
  if (entry == nullptr) {
    unlisted_.emplace_back(tensor);
  } else if (entry->file == file) {
    entry->seen = true;
  } else {
    entry->others = static_cast<std::uint8_t>(std::min(entry->others + 1, 2));
    elsewhere_.emplace_back(tensor);
    return false;
  }
  return true;
}

/// Whether the tensor's only copy is in a different file from the index's, and is kept.
bool IndexedFolder::is_moved(const WeightMapEntry& entry) const {
  return findings_.goes_on() && !entry.seen && entry.others == 1;
}

/// Reports a tensor that is not in its file. A missing file is already a finding, so its tensors are not reported.
void IndexedFolder::report_entry(const WeightMapEntry& entry) {
  const std::string& file = map_.files[entry.file];
  if (findings_.goes_on() && !entry.seen && entry.others > 1) {
    findings_.lose_tensor(entry.name, file, "the index's file lacks it, and several other files contain it");
  } else if (!was_read_[entry.file]) {
    findings_.lose_tensor(entry.name, file, "the index places it in a file that is missing or damaged");
  } else if (!entry.seen) {
    findings_.report(mismatch(fmt::format("the index places '{}' in {}, which lacks it", entry.name, file), entry.name,
                              index_name()));
  }
}

/// For repair: a missing file is a loss, unless other files contain all of its tensors.
void IndexedFolder::report_missing_files() {
  std::vector<bool> is_needed(map_.files.size());
  for (const WeightMapEntry& entry : map_.entries) is_needed[entry.file] = is_needed[entry.file] || !is_moved(entry);
  for (const std::uint32_t file : missing_) {
    const std::string& name = map_.files[file];
    if (is_needed[file]) findings_.report(listed_but_missing(name, join_path(files_.folder, name)));
  }
}

bool IndexedFolder::is_other_copy(std::string_view tensor, std::uint32_t file) {
  const WeightMapEntry* const entry = map_.find(tensor);
  return entry != nullptr && entry->file != file && !is_moved(*entry);
}

void IndexedFolder::finish(std::vector<std::string>& warnings) {
  report_missing_files();
  FirstNames moved;
  for (const WeightMapEntry& entry : map_.entries) is_moved(entry) ? moved.add(entry.name) : report_entry(entry);
  if (moved.count() > 0) {
    findings_.mend(
        fmt::format("{}: corrected the {} of {}", index_name(), moved.count() == 1 ? "file" : "files", moved.text()));
  }
  std::vector<std::string> outside;
  std::ranges::set_difference(files_.names, map_.files, std::back_inserter(outside));
  for (const std::string& name : outside) findings_.warn(extra_file(name, index_name()));
  for (const std::string& name : unlisted_) {
    findings_.tolerate(
        mismatch("the index does not list this tensor, which is in one of its files", name, index_name()));
  }
  const auto warn = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) warnings.push_back(fmt::format("{}: {}", what, first_names(names)));
  };
  warn("skipped files that the index does not list", outside);
  if (const std::string single(preferred_to(index_name())); std::ranges::binary_search(outside, single)) {
    warnings.push_back(
        fmt::format("transformers reads {} instead of the files in {}; name it to read it", single, index_name()));
  }
  warn("tensors that the index does not list are read from its files", unlisted_);
  if (!use_.skips_misplaced && !findings_.goes_on()) return;
  std::erase_if(elsewhere_, [this](const std::string& name) { return is_moved(*map_.find(name)); });
  for (const std::string& name : elsewhere_) {
    findings_.tolerate(mismatch("another file also contains this tensor, contrary to the index", name, index_name()));
  }
  warn("skipped tensors in files other than those in the index", elsewhere_);
}

void note_unnamed_parts(std::span<const std::string> paths, std::span<const std::string_view> suffixes,
                        Findings& findings, std::vector<std::string>& warnings) {
  std::vector<std::string> names;
  std::ranges::transform(paths, std::back_inserter(names), base_name);
  for (const std::string_view suffix : suffixes) {
    const std::optional<Error> others = unnamed_parts(names, suffix);
    if (!others) continue;
    findings.warn(*others);
    warnings.emplace_back(others->what());
  }
}

}  // namespace shard::hf_index
