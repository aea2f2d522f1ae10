/// \file
/// SavedReader: the base of all readers of torch.save files, regardless of the format that the files form together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/torch/check_saved.h"
#include "formats/torch/saved_files.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/core/error.h"
#include "libshard/exec/copied_files.h"

namespace shard::torch_save {

/// A file that torch saved under the name of a different file of the checkpoint, which its zip records.
struct ExchangedFile {
  std::uint32_t file, other;  ///< Indices into the catalog's files.
  Error error;                ///< The finding.
};

class SavedReader : public Reader {
 public:
  const Catalog& catalog() const final { return catalog_; }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const final { return files_.file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const final { return files_.bytes_of(storage); }
  void locate(std::span<const std::uint32_t> tensors) final {
    files_.locate_tensors(tensors);
    if (copy_findings_ != nullptr) copies_.look(catalog_, tensors, bytes_of_, *copy_findings_);
  }
  bool check_container(std::uint32_t index, ContainerReport& report) const final {
    check_saved_file(files_.file(index), report);
    return true;
  }

 protected:
  /// The base of a class that fills catalog_ from the files that it adds. Ownership: `store` must outlive this.
  SavedReader(const SourceStore& store, const SavedFilesOptions& options) : files_(store, catalog_, options) {}

  /// Makes `locate` warn of files that are copies of a different rank's file. Formats whose files need not record their
  /// rank call it. Ownership: `findings` must outlive this.
  void look_for_copies(Findings& findings) { copy_findings_ = findings.goes_on() ? nullptr : &findings; }
  std::vector<ExchangedFile> exchanged_files() const;

  Catalog catalog_ = source_catalog();
  SavedFiles files_;
  BytesOf bytes_of_ = [this](std::uint32_t storage) { return files_.bytes_of(storage); };

 private:
  CopyWarnings copies_;
  Findings* copy_findings_ = nullptr;
};

}  // namespace shard::torch_save
