/// \file
/// ZipsWriter: a Writer whose files are torch.save zips, followed by small text files.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/torch/placed_zip.h"
#include "libshard/checkpoint/writer.h"

namespace shard::torch_save {

/// A derived class implements `place`, which calls place_zip for each data file and then place_text, and pickle_of.
class ZipsWriter : public Writer {
 public:
  bool needs_checksums() const final { return true; }
  void begin_file(const Catalog& target, std::uint32_t file, FileWriter& to) final;
  std::unique_ptr<StorageFrames> frames(const Catalog& target) const final;
  void finish_file(const Catalog& target, std::uint32_t file, const Checksums& checksums, FileWriter& to) final;

 protected:
  /// Dumps the pickle of file number `file`; see PlacedZip.
  virtual PlacedZip::DumpPickle pickle_of(const Catalog& target, std::uint32_t file) = 0;

  /// Lays out the target's next file, whose folder in the zip gets its name from `name`. \pre the target has that file
  /// and all storages
  void place_zip(Catalog& target, const std::string& name);
  /// Adds a file with that content to the target. \pre no zip follows
  void place_text(Catalog& target, std::string path, std::string content);
  /// The zip of a file that was placed, or is being placed.
  PlacedZip& zip(std::uint32_t file) { return zips_[file]; }

 private:
  std::vector<PlacedZip> zips_;      ///< By file.
  std::vector<std::uint32_t> keys_;  ///< The key of each storage in its file; set when its pickle names it.
  std::vector<std::string> texts_;   ///< The contents of the files after the zips.
};

}  // namespace shard::torch_save
