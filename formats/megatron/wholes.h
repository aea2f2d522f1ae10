/// \file
/// Whole tensors, made of the parts that ranks hold.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "formats/megatron/names.h"
#include "formats/megatron/save.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/hash_table.h"

namespace shard::megatron {

/// The state that holds the masters of parameters of 16 bits.
inline constexpr std::string_view kMasters = "fp32_param";

class Wholes {
 public:
  /// Ownership: all of them must outlive this.
  Wholes(Catalog& catalog, torch_save::SavedFiles& files, const Save& save)
      : catalog_(catalog), builder_(catalog), arena_(*catalog.arena), files_(files), save_(save) {}

  /// The name of a chunk's tensor or object with its layer counted through the model.
  std::string counted(std::string_view name, std::int64_t stage, std::int64_t chunk) const;

  /// What the tensor `name` of a chunk is a part of.
  /// \throws Error kUnsupported  tensor-parallel ranks share it in a way that its name does not tell.
  Meaning meaning(std::string_view name, std::int64_t stage, std::int64_t chunk) const;

  /// Adds to the catalog what `view` of file number `file` describes. \returns its index in Catalog::stored
  std::uint32_t store(std::size_t rank, std::uint32_t file, const TensorView& view);

  /// Adds the part that rank number `rank` holds of tensor `name`, in Catalog::stored[stored].
  /// \param path  empty where it says no more than the name
  /// \throws Error kCorruption  its shape or dtype contradicts that of other parts, or its expert is not of the rank.
  void add(std::string_view name, Path path, const Meaning& meaning, std::size_t rank, std::uint32_t stored,
           const Part& part);

  /// The same of an optimizer's state of that tensor: optimizer.state.STATE.NAME.
  void add_state(std::string_view state, const Meaning& meaning, std::size_t rank, std::uint32_t stored,
                 const Part& part);

  /// Adds all tensors to the catalog. \pre called once, last
  void finish();

 private:
  /// How ranks share one of MLA's down projections, which some layer specifications cut and others do not.
  std::optional<Cut> cut_of_down_projection(std::string_view name, const TensorView& view) const;

  struct Whole {
    Path path;
    Dims shape;
    DType dtype{};
    std::vector<Chunk> chunks{};
  };

  void add_experts(std::string_view name, Path path, const Meaning& meaning, const Coordinates& rank,
                   std::uint32_t stored, const Part& part);
  void add_pieces(std::string_view name, Path path, std::uint32_t stored, const Pieces& pieces);

  Catalog& catalog_;
  CatalogBuilder builder_;
  Arena& arena_;
  torch_save::SavedFiles& files_;
  const Save& save_;
  HashMap<std::string_view, Whole> wholes_;
};

}  // namespace shard::megatron
