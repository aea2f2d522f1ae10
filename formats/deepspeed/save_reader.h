/// \file
/// SaveReader: an open save, as named tensors or with all that its files hold. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/format.h"
#include "formats/torch/saved_files.h"

namespace shard::deepspeed {

/// Which of a save a reader lists.
enum class Listing {
  kNamed,  ///< See merge.
  kWhole,  ///< See merge_whole.
};

class SaveReader final : public Reader {
 public:
  /// \throws Error  see open (reader.h)
  SaveReader(const Source& source, const OpenOptions& options, Listing listing);

  const Catalog& catalog() const override { return catalog_; }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return files_.bytes_of(storage);
  }
  void locate(std::span<const std::uint32_t> tensors) override { files_.locate_tensors(tensors); }
  bool check_container(std::uint32_t index, ContainerReport& report) const override;

  const TagFolder& folder() const { return folder_; }
  /// Of model-parallel rank 0; the only one of Listing::kWhole.
  const Save& save() const { return saves_.front(); }
  /// Of Listing::kWhole. The catalog's index of a parameter, a state or a frozen part; kNoIndex where there is none.
  std::uint32_t flat_tensor(std::string_view name) const;

 private:
  void read_save(const TagFolder& folder, const OpenOptions& options);
  void describe(std::int64_t ranks);

  Catalog catalog_ = source_catalog();
  TagFolder folder_;
  torch_save::SavedFiles files_;
  std::vector<Save> saves_;  ///< By model-parallel rank.
  FlatTensors flat_;
};

}  // namespace shard::deepspeed
