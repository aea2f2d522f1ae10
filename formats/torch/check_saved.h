/// \file
/// Checks all bytes of torch.save files that are not elements, and the checksums that zips have for the elements.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "libshard/checkpoint/container_report.h"
#include "libshard/core/hash_table.h"

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
};

/// Checks a zip of torch.save: see zip::check_zip. Small records and pickles are compared at once; longer ones are
/// passed to the report with their checksums.
void check_saved_zip(const ZipPlace& place, GlobalLister& globals, ContainerReport& report);

/// Checks a whole file: a zip, or one of torch before 1.6, which has no checksums.
void check_saved_file(const std::shared_ptr<const RandomReader>& file, ContainerReport& report);

}  // namespace shard::torch_save
