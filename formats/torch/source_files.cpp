#include "formats/torch/source_files.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/hf_index/index_file.h"
#include "formats/parts/zip/bytes.h"
#include "formats/torch/legacy_file.h"
#include "formats/torch/reader.h"
#include "libshard/core/error.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard::torch_save {

namespace {

constexpr std::string_view kIndexSuffix = ".bin.index.json";
constexpr std::string_view kUsualIndex = "pytorch_model.bin.index.json";
constexpr std::string_view kSingle = "pytorch_model.bin";
constexpr std::int64_t kNameProbeBytes = 512;

using hf_index::DataFiles;

bool is_index_name(std::string_view name) { return hf_index::is_index_name(name, kIndexSuffix); }
bool is_part_name(std::string_view name) { return name.starts_with("pytorch_model-") && name.ends_with(kBinSuffix); }

// True if all records are in one top folder, as torch writes them. Other zips (.npz) differ.
bool is_saved_zip(const RandomReader& file) {
  const std::string head = front_of(file, zip::kLocalBytes + kNameProbeBytes);
  const auto bytes = std::as_bytes(std::span(head));
  if (bytes.size() < static_cast<std::size_t>(zip::kLocalBytes)) return false;
  if (zip::load<std::uint32_t>(bytes, 0) != zip::kLocalSignature) return false;
  const std::size_t name_bytes = zip::load<std::uint16_t>(bytes, 26);
  return std::string_view(head).substr(static_cast<std::size_t>(zip::kLocalBytes), name_bytes).find('/') !=
         std::string_view::npos;
}

/// The files of a folder that could belong to its index.
std::vector<std::string> beside_index(const std::vector<std::string>& names) {
  std::vector<std::string> files;
  std::ranges::copy_if(names, std::back_inserter(files),
                       [](const std::string& name) { return is_part_name(name) || name == kSingle; });
  return files;
}

DataFiles from_folder(const SourceStore& store, const std::string& folder, Findings& findings) {
  const std::vector<std::string> names = store.list(folder);
  DataFiles files;
  files.folder = folder;
  if (const std::string index = hf_index::choose_index(folder, names, kIndexSuffix, kUsualIndex); !index.empty()) {
    files.index = join_path(folder, index);
    files.names = beside_index(names);
    return files;
  }
  if (std::ranges::find(names, kSingle) != names.end()) {
    files.names.emplace_back(kSingle);
    return files;
  }
  const bool has_parts = std::ranges::any_of(names, is_part_name);
  if (has_parts && findings.goes_on()) {
    findings.mend(fmt::format("{}: rebuilt the index from the parts", kUsualIndex));
    std::ranges::copy_if(names, std::back_inserter(files.names), is_part_name);
    return files;
  }
  throw Error(ErrorCode::kNotFound, has_parts ? "the folder holds parts of a checkpoint, but not their index"
                                              : "the folder holds no pytorch_model.bin")
      .in_file(join_path(folder, has_parts ? kUsualIndex : kSingle))
      .of_kind(FindingKind::kMissingFile);
}

}  // namespace

DataFiles find_saved_files(const Source& source, Findings& findings) {
  if (source.paths.empty()) throw Error(ErrorCode::kInvalidArgument, "no source was named");
  const std::string& first = source.paths.front();
  if (source.paths.size() > 1) {
    throw Error(ErrorCode::kUnsupported, "several torch.save files without an index are one per rank")
        .in_file(first)
        .because("this build reads one file, or a folder with an index");
  }
  if (is_one_folder(source)) return from_folder(*source.store, first, findings);
  DataFiles files;
  const auto file = source.store->open(first);
  if (!is_saved_zip(*file) && !is_legacy_file(*file) && hf_index::is_index_file(*file, kBinSuffix)) {
    files.folder = parent_path(first);
    files.index = first;
    files.names = beside_index(source.store->list(files.folder));
  } else {
    files.names = {first};
  }
  return files;
}

bool detect(const Source& source) {
  if (source.paths.size() != 1) return false;
  const std::string& path = source.paths.front();
  if (is_one_folder(source)) {
    return std::ranges::any_of(source.store->list(path), [](const std::string& name) {
      return is_index_name(name) || name == kSingle || is_part_name(name);
    });
  }
  const auto file = source.store->open(path);
  return is_saved_zip(*file) || is_legacy_file(*file) || hf_index::is_index_file(*file, kBinSuffix);
}

}  // namespace shard::torch_save
