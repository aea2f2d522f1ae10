#include "formats/dcp_hf/source_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <tuple>

#include "formats/dcp_hf/reader.h"
#include "formats/parts/hf_index/index_file.h"
#include "formats/parts/hf_index/indexed_folder.h"
#include "formats/safetensors/metadata.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"

namespace shard::dcp_hf {

namespace {

constexpr std::string_view kIndexSuffix = ".safetensors.index.json";

bool is_data_name(std::string_view name) { return name.ends_with(kSafetensorsSuffix) && !name.starts_with('.'); }

void add_file(ShardFiles& files, const std::string& path, const std::string& shown, Findings& findings) {
  if (const auto name = parse_shard_name(base_name(path))) {
    files.files.push_back({path, shown, *name});
    return;
  }
  findings.report(Error(ErrorCode::kCorruption, "the name does not say which rank wrote the file")
                      .in_file(shown)
                      .expected("shard-RRRRR-model-IIIII-of-NNNNN.safetensors")
                      .found(base_name(path))
                      .hint("restore its original name, or move it out of the folder")
                      .of_kind(FindingKind::kRankMismatch));
}

ShardFiles from_folder(const SourceStore& store, const std::string& folder, Findings& findings) {
  ShardFiles files;
  files.folder = folder;
  for (const std::string& name : store.list(folder)) {
    if (is_data_name(name)) {
      add_file(files, name, name, findings);
    } else if (!name.starts_with('.')) {
      files.others.push_back(name);
    }
  }
  if (files.files.empty()) {
    throw Error(ErrorCode::kNotFound, "the folder does not hold a shard")
        .in_file(folder)
        .of_kind(FindingKind::kMissingFile);
  }
  return files;
}

/// Reports shards that are in the folders of the named files but were not named. Without them a tensor may seem smaller
/// than it is.
void check_neighbours(const SourceStore& store, const std::vector<std::string>& paths, Findings& findings) {
  std::set<std::string> named, folders;
  bool are_shards = false;
  for (const std::string& path : paths) {
    named.insert(base_name(path));
    folders.insert(parent_path(path));
    are_shards = are_shards || base_name(path).starts_with("shard-");
  }
  const auto is_left_out = [&](const std::string& name) {
    const auto parsed = parse_shard_name(name);
    return parsed && (parsed->rank >= 0) == are_shards && !named.contains(name);
  };
  for (const std::string& folder : folders) {
    std::vector<std::string> left_out = store.list(folder);
    std::erase_if(left_out, [&](const std::string& name) { return !is_left_out(name); });
    if (left_out.empty()) continue;
    findings.report(
        Error(ErrorCode::kNotFound, fmt::format("{} of the checkpoint's shards {} not named: {}", left_out.size(),
                                                left_out.size() == 1 ? "is" : "are", first_names(left_out)))
            .in_file(join_path(folder, left_out[0]))
            .because("it is in the same folder as the named shards, and its tensors would be missing")
            .suggest(Remedy::kReadFolder, folder)
            .of_kind(FindingKind::kMissingFile));
  }
}

ShardFiles from_paths(const Source& source, Findings& findings) {
  ShardFiles files;
  const hf_index::DataFiles given = hf_index::files_as_given(source.paths);
  for (std::size_t i = 0; i < given.names.size(); ++i) add_file(files, given.names[i], given.shown[i], findings);
  check_neighbours(*source.store, source.paths, findings);
  return files;
}

void report_name(Findings& findings, const ShardFile& file, FindingKind kind, const std::string& what,
                 const std::string& expected, const std::string& found) {
  findings.report(
      Error(ErrorCode::kCorruption, what).in_file(file.shown).of_kind(kind).expected(expected).found(found));
}

/// \pre the files are sorted
void check_names(const ShardFiles& files, Findings& findings) {
  const ShardFile* last = nullptr;
  for (const ShardFile& file : files.files) {
    const auto& [rank, index, count] = file.name;
    const ShardFile& first = files.files.front();
    if (index < 1 || index > count) {
      report_name(findings, file, FindingKind::kIndexMismatch, fmt::format("the name says file {} of {}", index, count),
                  fmt::format("1 to {}", count), std::to_string(index));
    }
    if (count != first.name.count) {
      report_name(findings, file, FindingKind::kMixedSave,
                  fmt::format("the name says -of-{}, that of {} says -of-{}", count, first.shown, first.name.count),
                  std::to_string(first.name.count), std::to_string(count));
    }
    if ((rank < 0) != (first.name.rank < 0)) {
      report_name(findings, file, FindingKind::kMixedSave,
                  fmt::format("{} is not a shard, and {} is one", first.shown, file.shown), "files of one save",
                  "files of two");
    }
    if (last != nullptr && last->name.rank == rank && last->name.index == index) {
      report_name(findings, file, FindingKind::kRankMismatch,
                  fmt::format("{} and {} are the same file of one rank", last->shown, file.shown), "each file once",
                  "a file twice");
    }
    last = &file;
  }
}

/// Checks that each number has a file: each contains some tensor of some rank.
void check_numbers(const ShardFiles& files, Findings& findings) {
  std::vector<std::int64_t> numbers;
  for (const ShardFile& file : files.files) numbers.push_back(file.name.index);
  std::ranges::sort(numbers);
  const std::int64_t count = files.files.front().name.count;
  const NumberRuns missing = missing_from({{1, count}}, runs_of(numbers));
  if (missing.empty()) return;
  ShardName absent = files.files.front().name;
  absent.index = missing.front().first;
  findings.report(Error(ErrorCode::kNotFound, fmt::format("no file has number {} of {}", to_string(missing), count))
                      .in_file(join_path(files.folder.empty() ? "." : files.folder, to_string(absent)))
                      .expected(count)
                      .found(count - count_of(missing))
                      .hint("fetch the missing files")
                      .of_kind(FindingKind::kMissingFile));
}

}  // namespace

ShardFiles find_shard_files(const Source& source, Findings& findings) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  const SourceStore& store = *source.store;
  ShardFiles files =
      is_one_folder(source) ? from_folder(store, source.paths.front(), findings) : from_paths(source, findings);
  std::ranges::sort(files.files, {}, [](const ShardFile& file) {
    return std::tuple(file.name.rank, file.name.index, std::string_view(file.shown));
  });
  if (files.files.empty()) return files;  // All names were invalid and reported.
  check_names(files, findings);
  check_numbers(files, findings);
  return files;
}

bool detect(const Source& source) {
  const SourceStore& store = *source.store;
  std::vector<std::string> paths = source.paths;
  if (is_one_folder(source)) {
    const std::string folder = paths.front();
    paths = store.list(folder);
    if (std::ranges::any_of(paths, [](const auto& name) { return hf_index::is_index_name(name, kIndexSuffix); }))
      return false;
    std::erase_if(paths, [](const std::string& name) { return !is_data_name(name); });
    for (std::string& path : paths) path = join_path(folder, path);
  }
  return std::ranges::any_of(paths, [&](const std::string& path) {
    return store.status(path).kind == FileKind::kFile && safetensors::names_sharding_info(*store.open(path));
  });
}

}  // namespace shard::dcp_hf
