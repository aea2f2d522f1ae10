/// \file
/// Checks all bytes of torch.save files that are not elements, and the checksums that zips have for the elements; of a
/// checkpoint, and of files that cannot be opened as one.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libshard/checkpoint/container_report.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/core/hash_table.h"
#include "libshard/io/source_store.h"

namespace shard::torch_save {

/// Reports the globals of pickles. Equal pickles, such as those of one tensor's items, are read once. Threads: one.
class GlobalLister {
 public:
  /// Ownership: `report` must outlive this.
  explicit GlobalLister(ContainerReport& report) : report_(report) {}
  /// Reports the globals of a pickle; of a damaged one those before the damage. The reader of the checkpoint reports
  /// the damage.
  void list(std::span<const std::byte> pickle);

 private:
  ContainerReport& report_;
  HashSet<std::string> seen_;  ///< By digest.
};

/// A zip in a file, or a zip in a decoded stream. In the second case, `decoded` opens the view for further readers.
struct ZipPlace {
  std::shared_ptr<const RandomReader> file;
  std::int64_t begin = 0, bytes = 0;
  std::function<std::shared_ptr<const RandomReader>()> decoded{};
  /// If not null, the zip's structure and its small records are read through this view of `file`.
  std::shared_ptr<const RandomReader> view{};
};

/// Checks a zip of torch.save: see zip::check_zip. Small records and pickles are compared at once; longer ones are
/// passed to the report with their checksums.
void check_saved_zip(const ZipPlace& place, GlobalLister& globals, ContainerReport& report);

/// Checks a whole file: a zip, or one of torch before 1.6, which has no checksums.
void check_saved_file(const std::shared_ptr<const RandomReader>& file, ContainerReport& report);

/// Opens the files of a source one by one if it cannot be opened as a checkpoint. Finds files that torch.save may have
/// written among `paths`, and in the folders among them and below. The catalog contains only files; check_container
/// checks each. Null if there are none, or if some are files of dcp. Ownership: `store` must outlive the result. Cost:
/// opens each file; at most 10,000 are opened.
std::unique_ptr<Reader> open_loose_files(const SourceStore& store, const std::vector<std::string>& paths);

}  // namespace shard::torch_save
