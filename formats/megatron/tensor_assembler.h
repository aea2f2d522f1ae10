/// \file
/// TensorAssembler: whole tensors from the parts of all ranks. Inside formats/megatron only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/megatron/names.h"
#include "formats/megatron/save.h"
#include "formats/torch/saved_file.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/hash_table.h"

namespace shard::megatron {

/// The name of the state with the master weights of 16-bit parameters.
inline constexpr std::string_view kMasters = "fp32_param";

inline Part part_of(Dims shape, Dims strides, std::int64_t first) {
  return {{shape.begin(), shape.end()}, {strides.begin(), strides.end()}, first};
}

/// Builds whole tensors from the parts of all ranks.
class TensorAssembler {
 public:
  /// Ownership: all of them must outlive this.
  TensorAssembler(Catalog& catalog, torch_save::SavedFiles& files, const Save& save)
      : catalog_(catalog), builder_(catalog), arena_(*catalog.arena), files_(files), save_(save) {}

  /// The name of a chunk's tensor or object, with its layer numbered through the model.
  std::string counted(std::string_view name, std::int64_t stage, std::int64_t chunk) const;

  /// The meaning of the name `name` of a chunk's tensor, with all rules applied.
  /// \throws Error kUnsupported  tensor-parallel ranks share it in a way that its name does not define.
  Meaning meaning(std::string_view name, std::int64_t stage, std::int64_t chunk) const;
  /// Adds the stored tensor of `view` in file number `file`. \returns its index in Catalog::stored
  std::uint32_t store(std::size_t rank, std::uint32_t file, const TensorView& view);
  /// Adds rank number `rank`'s part of tensor `name`, in Catalog::stored[stored].
  /// \param path  empty if it is the name as a single key
  /// \throws Error kCorruption  its shape or dtype contradicts that of other parts, or its expert does not belong to
  ///   the rank.
  void add(std::string_view name, Path path, const Meaning& meaning, std::size_t rank, std::uint32_t stored,
           const Part& part);
  /// Adds a part of an optimizer state of that tensor: optimizer.state.STATE.NAME.
  void add_state(std::string_view state, const Meaning& meaning, std::size_t rank, std::uint32_t stored,
                 const Part& part);
  /// Adds all tensors to the catalog. \pre called once, last
  void finish();

 private:
  /// How ranks share one of MLA's down projections, which only some layer specifications shard.
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
