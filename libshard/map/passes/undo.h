/// \file
/// Undoing a map: from the tensors that a checkpoint stores to the logical ones, as a catalog whose chunks are views of
/// the same storages. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/map/arithmetic/compose.h"
#include "libshard/map/arithmetic/rule_parts.h"
#include "libshard/map/documents/model_map.h"
#include "libshard/map/passes/apply.h"

namespace shard {

/// The logical view of a checkpoint under a map. Stored tensors are indices into the stored catalog; they do not change
/// while chunks are located.
class UndoneMap {
 public:
  /// Part of what is stored that must be zero.
  struct Padding {
    std::string_view name;
    MapLink link;
  };

  /// `leaves_out` says of a name that no rule matches whether it is left out; where it is empty, none is. The caller's
  /// map may go first.
  /// \throws Error kInvalidArgument  names that no rule matches (the first few named), a rule that must match and does
  ///   not, two logical tensors of one name, shapes that are not what the map says, a missing variable.
  /// \throws Error kNotFound         a rank lacks its part of a tensor.
  UndoneMap(const Catalog& stored, const ModelMap& map, const std::function<bool(std::string_view)>& leaves_out = {});

  /// The logical catalog, validated; it borrows the stored one's arena. `root` and shared views are not taken over.
  Catalog make_catalog(const Catalog& stored) const;
  /// Updates a catalog from make_catalog with newly located storages and the chunks of these tensors.
  void refresh(const Catalog& stored, std::span<const std::uint32_t> tensors, Catalog& logical) const;
  /// The stored tensors that logical ones are made of, each once, rising.
  std::vector<std::uint32_t> stored_of(std::span<const std::uint32_t> tensors) const;
  /// Replicas of these must be equal: false where the document says that the first counts.
  bool compares_replicas(std::uint32_t tensor) const { return entries_[tensor].compares_replicas; }
  std::span<const Padding> paddings() const { return paddings_; }
  /// The stored tensors in which a padding lies.
  std::vector<std::uint32_t> stored_of(const Padding& padding) const;
  /// What a padding is made of, as views of storages. Dims lie in `arena`.
  std::vector<Chunk> chunks_of(const Catalog& stored, const Padding& padding, Arena& arena) const;
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Names that no rule matched: those that were left out, and those that stay as they are.
  const std::vector<std::string>& left_out() const { return left_out_; }
  std::int64_t copied() const { return copied_; }
  std::int64_t dropped() const { return dropped_; }  ///< Those that a rule leaves out.

 private:
  friend class Undoing;
  struct Entry {
    std::string_view name;
    Path path;
    Dims shape;
    DType dtype{};
    std::int32_t rank = -1;
    bool is_alias = false;
    bool compares_replicas = true;
    std::vector<MapLink> links;
  };
  LinkTargets targets_in(const Catalog& stored) const;
  void append_stored(const MapLink& link, std::vector<std::uint32_t>& out) const;

  std::shared_ptr<Arena> arena_;
  std::vector<int> singles_;                 ///< single_dims of the stored catalog.
  std::shared_ptr<const AppliedMap> paper_;  ///< Keeps what links of flat buffers name.
  const FlatBuffers* flat_ = nullptr;        ///< Of paper_.
  std::vector<std::uint32_t> buffer_of_;     ///< By buffer: the stored tensor.
  std::vector<Entry> entries_;               ///< By name, then rank.
  std::vector<Padding> paddings_;
  std::vector<std::string> warnings_, left_out_;
  std::int64_t copied_ = 0, dropped_ = 0;
};

}  // namespace shard
