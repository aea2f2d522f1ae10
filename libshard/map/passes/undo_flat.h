/// \file FlatUndo: finds the logical tensors in flat buffers. Inside libshard/map only.
///
/// The buffers do not record their content, so it is computed. The map is applied to tensors with known shapes, without
/// data, and each resulting buffer is looked up in the checkpoint.
#pragma once

#include <re2/re2.h>

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/dtype.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/map/documents/model_map.h"
#include "libshard/map/passes/apply.h"

namespace shard {

// Errors of undoing a map, for separate tensors and for those in flat buffers.

/// kInvalidArgument: two stored tensors are the same part of one rank. \param rank  -1: equal on all ranks
Error held_twice(std::string_view tensor, std::int64_t rank);
/// kNotFound: a rank does not have the part that the map assigns to it.
Error part_missing(std::string_view tensor, std::int64_t rank);
/// kCorruption of kind dtype_mismatch.
Error dtypes_differ(std::string_view tensor, DType expected, DType found);

struct FlatBuffer;

/// Ownership: catalog, map and arena must outlive it.
class FlatUndo {
 public:
  /// A logical tensor that is known without the buffers.
  struct Known {
    std::string_view name;
    Dims shape;
  };
  /// \param arena  holds the boxes of tails.
  FlatUndo(const Catalog& stored, const ModelMap& map, Arena& arena);

  /// Records a stored tensor if its name is that of a buffer. \returns whether it is.
  /// \throws Error kInvalidArgument  a rank has two with that name
  bool take(std::uint32_t index);

  /// Computes all buffers. If the document does not state the shapes of states, those of `known` are used.
  /// \throws Error kInvalidArgument  unknown shapes, a buffer that is not the map's, or of a different shape
  /// \throws Error kNotFound         a rank lacks a buffer
  /// \throws Error kCorruption       buffers of one tensor have different dtypes
  void run(std::span<const Known> known);

  /// The tensors in buffers, and stored padding. Views of `paper`. Links are to stored tensors of the checkpoint, and
  /// to local ones.
  const std::vector<AppliedMap::Entry>& made() const { return made_; }
  /// Null if there are no buffers. The caller must keep it, because `made` and FlatBuffers are parts of it.
  std::shared_ptr<const AppliedMap> paper() const { return paper_; }
  const FlatBuffers* buffers() const { return paper_->flat_.get(); }
  /// By buffer: the stored tensor.
  const std::vector<std::uint32_t>& buffer_of() const { return buffer_of_; }

 private:
  struct Family {
    std::unique_ptr<RE2> names;
    bool is_there = false;
    DType dtype{};  ///< The dtype of the first buffer.
  };

  void add_stated(std::size_t family, Catalog& catalog);
  void add_like(std::size_t family, std::span<const Known> known, Catalog& catalog);
  void add(std::string_view name, std::span<const std::int64_t> shape, DType dtype, Catalog& catalog);
  void find_buffers();
  std::uint32_t find_buffer(const FlatBuffer& buffer);
  void take_tail(const FlatBuffer& buffer, std::uint32_t index);
  void find_dtypes();
  DType dtype_of(std::string_view name, std::span<const MapLink> links) const;

  const Catalog& stored_;
  const ModelMap& map_;
  const MapFlatten& flatten_;
  Arena& arena_;
  std::vector<Family> families_;
  HashMap<std::string, std::uint32_t> found_;  ///< Keys are "RANK NAME" (-1: equal on all ranks).
  HashSet<std::uint32_t> used_;
  std::shared_ptr<AppliedMap> paper_;
  std::vector<std::uint32_t> buffer_of_;
  std::vector<DType> dtypes_;  ///< By local tensor.
  std::vector<AppliedMap::Entry> made_;
};

}  // namespace shard
