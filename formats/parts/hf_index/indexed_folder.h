/// \file
/// A checkpoint whose tensors are distributed over files: the list of the files, and the index that selects the file of
/// each tensor.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/hf_index/folder_names.h"
#include "formats/parts/hf_index/index_file.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"
#include "libshard/io/source_store.h"

namespace shard::hf_index {

/// The fault of files in `folder` without an index, or nothing. Parts of two counts under one name (-of-00003 and
/// -of-00005) are two checkpoints. Otherwise a part may be missing.
std::optional<Error> counted_fault(const std::string& folder, const std::vector<std::string>& names,
                                   std::string_view suffix);

/// The files of a source.
struct DataFiles {
  std::string folder{};               ///< The folder of `names`; empty if they are paths as given.
  std::vector<std::string> names{};   ///< Data files to read. With an index: the candidates.
  std::vector<std::string> shown{};   ///< Their names in the catalog, in the same order.
  std::string index{};                ///< Path of the index, or empty.
  std::vector<std::string> others{};  ///< Other names in the folder, except hidden ones.
};

/// Files that were named one by one. They are shown with their base names if those differ.
DataFiles files_as_given(const std::vector<std::string>& paths);

/// How a format uses an index.
struct IndexUse {
  std::string_view suffix;  ///< The suffix of the format's data files: ".safetensors".
  /// The source from which a damaged index is rebuilt, for messages: "headers", "parts".
  std::string_view rebuilt_from;
  bool reads_sets = false;       ///< Parts without an index are a checkpoint.
  bool skips_misplaced = false;  ///< Tensors that the index places in a different file are not read.
};

/// Reads the files that an index lists, and reports contradictions between the index and the files.
class IndexedFolder {
 public:
  /// If `findings.goes_on()`, a damaged index is not a loss. Ownership: all references must outlive this.
  IndexedFolder(const SourceStore& store, DataFiles& files, const IndexUse& use, Findings& findings)
      : store_(store), files_(files), use_(use), findings_(findings) {}

  /// \returns whether the files are to be read by an index. If not, `files.names` are to be read. \throws Error
  ///   kCorruption
  bool read_index();
  /// Calls `read` for each listed file that exists; `read` returns whether its tensors are known. Reports the others.
  void read_files(const std::function<bool(const std::string& name, std::uint32_t file)>& read);
  /// Records that file number `file` contains a tensor. \returns false if the index places it in a different file.
  bool take(std::string_view tensor, std::uint32_t file);
  /// Reports contradictions between the index and the files, some as a line in `warnings`. For repair, a tensor that is
  /// missing from the index's file and in exactly one other file is kept, because then the index is damaged.
  /// \pre all tensors were taken
  void finish(std::vector<std::string>& warnings);
  /// Whether the index lists a tensor of that name.
  bool lists(std::string_view tensor) { return map_.find(tensor) != nullptr; }
  /// Whether file number `file` contains a copy of the tensor that a repair does not use. \pre finish
  bool is_other_copy(std::string_view tensor, std::uint32_t file);
  /// The arena that stores the index's names.
  const std::shared_ptr<Arena>& arena() const { return map_.arena; }

 private:
  std::string index_name() const;
  void check_stale();
  bool is_moved(const WeightMapEntry& entry) const;
  void report_entry(const WeightMapEntry& entry);
  void report_missing_files();

  const SourceStore& store_;
  DataFiles& files_;
  IndexUse use_;
  Findings& findings_;
  WeightMap map_;                       ///< Empty without an index.
  std::vector<bool> was_read_;          ///< By file of the index.
  std::vector<std::uint32_t> missing_;  ///< For repair: the files of the index that do not exist.
  std::vector<std::string> unlisted_, elsewhere_;
};

/// Adds to `warnings` that files which were named one by one are only some of the parts that their names count.
/// `suffixes`: those of the format's data files.
void note_unnamed_parts(std::span<const std::string> paths, std::span<const std::string_view> suffixes,
                        Findings& findings, std::vector<std::string>& warnings);

}  // namespace shard::hf_index
