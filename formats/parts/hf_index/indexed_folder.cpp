#include "formats/parts/hf_index/indexed_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_findings.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
#include "libshard/io/paths.h"

namespace shard::hf_index {

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
    const bool is_there =
        std::ranges::binary_search(files_.names, name) || store_.status(path).kind != FileKind::kAbsent;
    was_read_.push_back(is_there && read(name, i));
    if (is_there) continue;
    findings_.report(Error(ErrorCode::kNotFound, fmt::format("the index names {}, which is missing", name))
                         .in_file(path)
                         .hint("fetch the missing file")
                         .of_kind(FindingKind::kMissingFile));
  }
}

bool IndexedFolder::take(std::string_view tensor, std::uint32_t file) {
  WeightMapEntry* const entry = map_.find(tensor);
  if (entry == nullptr) {
    unlisted_.emplace_back(tensor);
  } else if (entry->file == file) {
    entry->seen = true;
  } else {
    elsewhere_.emplace_back(tensor);
    return false;
  }
  return true;
}

void IndexedFolder::finish(std::vector<std::string>& warnings) {
  // A missing file is already a finding, so its tensors are not reported.
  for (const WeightMapEntry& entry : map_.entries) {
    const std::string& file = map_.files[entry.file];
    if (!was_read_[entry.file]) {
      findings_.lose_tensor(entry.name, file, "the index places it in a file that is missing or damaged");
    } else if (!entry.seen) {
      findings_.report(absent_tensor(entry.name, file, index_name()));
    }
  }
  std::vector<std::string> outside;
  std::ranges::set_difference(files_.names, map_.files, std::back_inserter(outside));
  for (const std::string& name : outside) findings_.warn(extra_file(name));
  for (const std::string& name : unlisted_) findings_.tolerate(unlisted_tensor(name, index_name()));
  const auto warn = [&](const char* what, const std::vector<std::string>& names) {
    if (!names.empty()) warnings.push_back(fmt::format("{}: {}", what, first_names(names)));
  };
  warn("skipped files that the index does not list", outside);
  warn("tensors that the index does not list are read from its files", unlisted_);
  if (!use_.skips_misplaced) return;
  for (const std::string& name : elsewhere_) findings_.tolerate(misplaced_tensor(name, index_name()));
  warn("tensors in another file than the index says are left out there", elsewhere_);
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
