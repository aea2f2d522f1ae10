/// \file SaveReader: an open save, as named tensors or with all its files' content. Inside formats/deepspeed only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/deepspeed/merge.h"
#include "formats/deepspeed/tag_folder.h"
#include "formats/format.h"
#include "formats/torch/saved_reader.h"

namespace shard::deepspeed {

/// The entries of a save that a reader lists.
enum class Listing {
  kNamed,   ///< See merge.
  kWhole,   ///< See merge_whole.
  kJoined,  ///< Like kWhole, but the parameters of several model-parallel ranks are joined if there are rules.
};

/// The listed entries of one model-parallel rank. Ownership: refers to the reader.
struct WholeSave {
  const Catalog& catalog;
  const TagFolder& folder;  ///< Its files.
  const Save& save;
  const FlatTensors& flat;  ///< With Listing::kJoined, those of all model-parallel ranks.
  int model_rank = 0, model_ranks = 1;

  /// The catalog's index of a parameter, a state or a frozen part; kNoIndex if it does not exist.
  std::uint32_t flat_tensor(std::string_view name) const;
  /// The number of its data-parallel rank `rank` among all ranks.
  int number_of(std::int64_t rank) const { return static_cast<int>(rank) * model_ranks + model_rank; }
};

class SaveReader final : public torch_save::SavedReader {
 public:
  /// \throws Error  see open (reader.h)
  SaveReader(const Source& source, const OpenOptions& options, Listing listing);

  /// The folder's name. If its path does not contain it ("."), the engine's default name.
  std::string tag() const;
  /// By model-parallel rank. \pre the listing is not kNamed
  std::vector<WholeSave> wholes() const;

 private:
  SaveReader(const Source& source, const OpenOptions& options, Listing listing, TagFolder folder);
  void read_save(const TagFolder& folder, const OpenOptions& options);
  void read_experts(const TagFolder& folder, const OpenOptions& options, Save& save);
  void read_optimizers(const TagFolder& folder, const OpenOptions& options, Save& save);
  void skip_optimizers(const Error& error, const OpenOptions& options, Save& save);
  /// \throws Error kUnsupported  there are experts or layers, which only Listing::kNamed includes.
  void refuse_parts() const;
  void describe(std::int64_t ranks);

  TagFolder folder_;
  std::vector<TagFolder> folders_;  ///< The files of each model-parallel rank.
  std::vector<Save> saves_;         ///< One per model-parallel rank.
  std::vector<FlatTensors> flat_;   ///< One per model-parallel rank, or a single one; see merge_whole.
  std::size_t tensor_ranks_ = 1;    ///< The model-parallel ranks of each stage of a pipeline.
};

}  // namespace shard::deepspeed
