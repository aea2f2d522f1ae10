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

/// What a reader lists of a save.
enum class Listing {
  kNamed,   ///< See merge.
  kWhole,   ///< See merge_whole.
  kJoined,  ///< Like kWhole, with the parameters of several model-parallel ranks joined where rules exist.
};

/// What is listed of one model-parallel rank. Ownership: refers to the reader.
struct WholeSave {
  const Catalog& catalog;
  const TagFolder& folder;  ///< Its files.
  const Save& save;
  const FlatTensors& flat;  ///< Of Listing::kJoined those of all model-parallel ranks.
  int model_rank = 0, model_ranks = 1;

  /// The catalog's index of a parameter, a state or a frozen part; kNoIndex where there is none.
  std::uint32_t flat_tensor(std::string_view name) const;
  /// Its data-parallel rank `rank` among all ranks.
  int number_of(std::int64_t rank) const { return static_cast<int>(rank) * model_ranks + model_rank; }
};

class SaveReader final : public torch_save::SavedReader {
 public:
  /// \throws Error  see open (reader.h)
  SaveReader(const Source& source, const OpenOptions& options, Listing listing);

  /// The folder's name, or where its path does not say it ("."), the one that the engine gives by default.
  std::string tag() const;
  /// By model-parallel rank; not of Listing::kNamed.
  std::vector<WholeSave> wholes() const;

 private:
  SaveReader(const Source& source, const OpenOptions& options, Listing listing, TagFolder folder);
  void read_save(const TagFolder& folder, const OpenOptions& options);
  void describe(std::int64_t ranks);

  TagFolder folder_;
  std::vector<TagFolder> folders_;  ///< The files of each model-parallel rank.
  std::vector<Save> saves_;         ///< As folders_.
  std::vector<FlatTensors> flat_;   ///< As folders_, or one; see merge_whole.
};

}  // namespace shard::deepspeed
