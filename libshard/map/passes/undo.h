/// \file UndoneMap: converts a checkpoint's stored tensors to logical ones, as a catalog whose chunks are views of the
///   same storages. Pure.
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

/// The logical view of a checkpoint under a map. Stored tensors are identified by their indices in the stored catalog,
/// which do not change while chunks are located.
class UndoneMap {
 public:
  /// A part of the stored tensors that must be zero.
  struct Padding {
    std::string_view name;
    MapLink link;
  };

  /// \param leaves_out  returns whether a name that no rule matches is skipped. Empty: none is skipped. The map may be
  ///   destroyed first.
  /// \throws Error kInvalidArgument  names that no rule matches (the message has the first few); a rule that must match
  ///   and does not; two logical tensors with one name; shapes that contradict the map; a missing variable.
  /// \throws Error kNotFound         a rank lacks its part of a tensor
  /// \throws Error kCorruption       ranks store a tensor with different dtypes
  /// \throws Error kUnsupported      the map needs too many runs or pieces
  UndoneMap(const Catalog& stored, const ModelMap& map, const std::function<bool(std::string_view)>& leaves_out = {});

  /// The logical catalog, validated. It borrows the stored one's arena. `root` and shared views are not copied.
  Catalog make_catalog(const Catalog& stored) const;
  /// Updates a catalog from make_catalog with newly located storages and the chunks of these tensors.
  void refresh(const Catalog& stored, std::span<const std::uint32_t> tensors, Catalog& logical) const;
  /// The stored tensors that contain these logical tensors, in rising order without duplicates.
  std::vector<std::uint32_t> stored_of(std::span<const std::uint32_t> tensors) const;
  /// Whether the replicas of this tensor must be equal. False if the document selects the first one.
  bool compares_replicas(std::uint32_t tensor) const { return entries_[tensor].compares_replicas; }
  std::span<const Padding> paddings() const { return paddings_; }
  /// The stored tensors that contain a padding.
  std::vector<std::uint32_t> stored_of(const Padding& padding) const;
  /// The chunks of a padding, as views of storages. Dims are allocated in `arena`.
  std::vector<Chunk> chunks_of(const Catalog& stored, const Padding& padding, Arena& arena) const;
  /// The logical tensors whose values the map changes. The catalog's bytes are those of the stored ones.
  std::vector<MapComputed> computed() const;
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// Names that no rule matched: those that were skipped, and the number of those that are copied unchanged.
  const std::vector<std::string>& left_out() const { return left_out_; }
  std::int64_t copied() const { return copied_; }
  std::int64_t dropped() const { return dropped_; }  ///< The number of tensors that a rule drops.

 private:
  friend class Undoing;
  struct Entry {
    std::string_view name;
    Path path;
    Dims shape;
    DType dtype{};
    std::int32_t rank = -1;
    bool is_alias = false;
    bool is_joined = false;  ///< Some links are those of an alias, which may be sharded differently.
    bool compares_replicas = true;
    MapFactors factors{};
    std::vector<MapLink> links;
  };
  LinkTargets targets_in(const Catalog& stored) const;
  std::vector<Chunk> chunks_of(const Catalog& stored, const Entry& entry) const;
  void append_stored(const MapLink& link, std::vector<std::uint32_t>& out) const;

  std::shared_ptr<Arena> arena_;
  std::vector<int> singles_;                 ///< The result of single_dims for the stored catalog.
  std::shared_ptr<const AppliedMap> paper_;  ///< Owns the data to which links of flat buffers refer.
  const FlatBuffers* flat_ = nullptr;        ///< Points into paper_.
  std::vector<std::uint32_t> buffer_of_;     ///< By buffer: the stored tensor.
  std::vector<Entry> entries_;               ///< Sorted by name, then rank.
  std::vector<Padding> paddings_;
  std::vector<std::string> warnings_, left_out_;
  std::int64_t copied_ = 0, dropped_ = 0;
};

}  // namespace shard
