/// \file
/// SavedReader: the base of all readers of torch.save files, regardless of the format that the files form together.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "formats/torch/check_saved.h"
#include "formats/torch/saved_files.h"
#include "libshard/checkpoint/reader.h"

namespace shard::torch_save {

class SavedReader : public Reader {
 public:
  const Catalog& catalog() const final { return catalog_; }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const final { return files_.file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const final { return files_.bytes_of(storage); }
  void locate(std::span<const std::uint32_t> tensors) final { files_.locate_tensors(tensors); }
  bool check_container(std::uint32_t index, ContainerReport& report) const final {
    check_saved_file(files_.file(index), report);
    return true;
  }

 protected:
  /// The base of a class that fills catalog_ from the files that it adds. Ownership: `store` must outlive this.
  SavedReader(const SourceStore& store, const SavedFilesOptions& options) : files_(store, catalog_, options) {}

  Catalog catalog_ = source_catalog();
  SavedFiles files_;
};

}  // namespace shard::torch_save
