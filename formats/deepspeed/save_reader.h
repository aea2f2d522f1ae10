/// \file
/// SaveReader: an open save, as named tensors or with all that its files hold. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/format.h"
#include "formats/torch/saved_reader.h"

namespace shard::deepspeed {

/// Which of a save a reader lists.
enum class Listing {
  kNamed,  ///< See merge.
  kWhole,  ///< See merge_whole.
};

class SaveReader final : public torch_save::SavedReader {
 public:
  /// \throws Error  see open (reader.h)
  SaveReader(const Source& source, const OpenOptions& options, Listing listing);

  const TagFolder& folder() const { return folder_; }
  /// The folder's name, or where its path does not say it ("."), the one that the engine gives by default.
  std::string tag() const;
  /// Of model-parallel rank 0; the only one of Listing::kWhole.
  const Save& save() const { return saves_.front(); }
  /// Of Listing::kWhole. The catalog's index of a parameter, a state or a frozen part; kNoIndex where there is none.
  std::uint32_t flat_tensor(std::string_view name) const;

 private:
  SaveReader(const Source& source, const OpenOptions& options, Listing listing, TagFolder folder);
  void read_save(const TagFolder& folder, const OpenOptions& options);
  void describe(std::int64_t ranks);

  TagFolder folder_;
  std::vector<Save> saves_;  ///< By model-parallel rank.
  FlatTensors flat_;
};

}  // namespace shard::deepspeed
