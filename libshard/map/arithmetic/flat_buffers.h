/// \file FlatBuffers: locates each local tensor in flat buffers. Pure. Inside libshard/map only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/layouts/flat_buffer.h"
#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/hash_table.h"
#include "libshard/map/documents/flatten.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

class FlatKeys {
 public:
  struct Place {
    std::string group;  ///< The text for {group}: its number, or the text that its pattern captures.
    /// The sort key of the document's order: the item, the numbers of its placeholders, and the name within the item.
    /// Empty if only names decide.
    std::vector<std::int64_t> order;
  };

  /// \throws Error kInvalidArgument  the patterns are too large
  explicit FlatKeys(const MapFlatten& flatten);

  /// The key for a model's stored name, or nothing if no group matches or the list of names does not contain it.
  /// \throws Error kInvalidArgument  two items of the list match
  std::optional<Place> find(std::string_view key) const;

 private:
  std::optional<Place> place_of(std::string_view key) const;
  std::optional<std::string> group_of(std::string_view key) const;
  std::optional<std::vector<std::int64_t>> order_of(std::string_view key) const;

  struct Pattern {
    std::unique_ptr<RE2> compiled;
    std::int64_t item, name;
  };
  const MapFlatten& flatten_;
  std::vector<std::unique_ptr<RE2>> groups_;
  HashMap<std::string, std::vector<std::int64_t>> plain_;  ///< Names in the list that have no placeholders.
  HashMap<std::string, std::string> group_of_name_;        ///< The group of each name in param_shapes.
  std::vector<Pattern> patterns_;                          ///< Names in the list that have placeholders.
  PatternSets sets_{RE2::ANCHOR_BOTH};                     ///< Indexed by pattern.
  MatchTime time_;
};

/// A tensor that a rule produces for one rank and stores in flat buffers.
struct FlatLocal {
  std::size_t family = 0;
  std::string key;           ///< The model's stored name.
  std::int64_t rank = 0;     ///< The rank with coordinate 0 on the flat axis, whose ranks share the tensor.
  std::uint32_t origin = 0;  ///< Equal for possible replicas: the logical tensor with which they begin.
  Dims shape;
  DType dtype{};
};

/// One rank's slice of a group's buckets.
struct FlatBuffer {
  std::string name;
  std::int64_t rank = 0;
  std::int64_t size = 0;   ///< The number of elements that a map writes.
  std::int64_t whole = 0;  ///< The largest number of elements that may be read, including a tail of padding.
  DType dtype{};
};

/// Elements [begin, begin + count) of a local tensor, stored from element `first` of a buffer.
struct FlatPlace {
  std::uint32_t buffer = 0;
  std::int64_t first = 0, begin = 0, count = 0;
};

/// Limit on the pieces of tensors and padding in one map.
inline constexpr std::size_t kMaxFlatPieces = 1 << 24;

class FlatBuffers {
 public:
  /// \throws Error kInvalidArgument  no group or order contains a local tensor; `order` or `buckets` has a name without
  ///   a tensor; tensors of different dtypes are in one buffer
  /// \throws Error kUnsupported      more buffers or pieces than kMaxFlatPieces
  FlatBuffers(const ModelMap& map, std::vector<FlatLocal> locals);

  std::span<const FlatLocal> locals() const { return locals_; }
  std::span<const FlatBuffer> buffers() const { return buffers_; }
  /// The places of a local tensor, with rising buffers and begins.
  std::span<const FlatPlace> places_of(std::uint32_t local) const { return places_[local]; }
  /// The padding of all buffers. Entries of one buffer rise and are not adjacent; `begin` has no meaning.
  std::span<const FlatPlace> padding() const { return padding_; }

  /// Appends the parts of buffers that contain elements [begin, end) of a local tensor, and a few more, to `out` as
  /// chunks of the tensor. `buffer_of` has the index in `stored` of each buffer. Dims are allocated in `arena`.
  void append_chunks(const Catalog& stored, std::span<const std::uint32_t> buffer_of, std::uint32_t local,
                     std::int64_t begin, std::int64_t end, Arena& arena, std::vector<Chunk>& out) const;

 private:
  /// The locations of a group's buckets in the buffers of its parts.
  struct BucketPlaces {
    std::int64_t stride;                 ///< The number of buffers from one part to the next.
    std::vector<std::uint32_t> buffers;  ///< By bucket: its buffer in part 0.
    std::vector<std::int64_t> begins;    ///< By bucket: the begin of its slice in the buffer.
  };
  void lay_group(const ModelMap& map, std::span<const std::uint32_t> locals, const std::string& group);
  void count_pieces(std::size_t more);
  void cut_replicas();
  BucketPlaces add_buffers(const ModelMap& map, const FlatLocal& first, const std::string& group,
                           const FlatLayout& layout);
  void add_padding(const FlatPlace& place);

  std::vector<FlatLocal> locals_;
  std::vector<FlatBuffer> buffers_;
  std::vector<std::vector<FlatPlace>> places_;  ///< By local tensor.
  std::vector<FlatPlace> padding_;
  std::vector<std::uint32_t> last_padding_;  ///< By buffer: the index in padding_ of its last padding.
  HashSet<std::string> bucket_ends_;
  std::size_t pieces_ = 0;
};

}  // namespace shard
