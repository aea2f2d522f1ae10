/// \file
/// FlatBuffers: which run of which flat buffer each local tensor lies in. Pure. Inside libshard/map only.
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
#include "libshard/catalog/flat_buffer.h"
#include "libshard/catalog/pattern_sets.h"
#include "libshard/core/hash_table.h"
#include "libshard/map/documents/flatten.h"
#include "libshard/map/documents/model_map.h"

namespace shard {

class FlatKeys {
 public:
  struct Place {
    std::string group;  ///< What stands for {group}: its number, or what its pattern captures.
    /// In the document's order: item, numbers of its placeholders, name of the item; none where names decide.
    std::vector<std::int64_t> order;
  };

  /// \throws Error kInvalidArgument  patterns that are too large
  explicit FlatKeys(const MapFlatten& flatten);

  /// The key for a model's stored name, or nothing if no group matches or the list of names does not contain it.
  /// \throws Error kInvalidArgument  two items of the list have it
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
  HashMap<std::string, std::vector<std::int64_t>> plain_;  ///< Names of the list without placeholders.
  HashMap<std::string, std::string> group_of_name_;        ///< Of param_shapes.
  std::vector<Pattern> patterns_;                          ///< Those with some.
  PatternSets sets_{RE2::ANCHOR_BOTH};                     ///< By pattern.
  MatchTime time_;
};

/// What a rule makes for one rank and stores in flat buffers.
struct FlatLocal {
  std::size_t family = 0;
  std::string key;           ///< The model's stored name.
  std::int64_t rank = 0;     ///< With coordinate 0 on the flat axis; the tensor is all of these ranks'.
  std::uint32_t origin = 0;  ///< Says which locals may be replicas: the logical tensor that it begins with.
  Dims shape;
  DType dtype{};
};

/// One rank's slice of a group's buckets.
struct FlatBuffer {
  std::string name;
  std::int64_t rank = 0;
  std::int64_t size = 0;   ///< Elements that are made.
  std::int64_t whole = 0;  ///< The most that may be read: with a tail of padding.
  DType dtype{};
};

/// Elements [begin, begin + count) of a local tensor, from element `first` of a buffer on.
struct FlatPlace {
  std::uint32_t buffer = 0;
  std::int64_t first = 0, begin = 0, count = 0;
};

/// Limit on the pieces of tensors and padding in one map.
inline constexpr std::size_t kMaxFlatPieces = 1 << 24;

class FlatBuffers {
 public:
  /// \throws Error kInvalidArgument  a local tensor that no group or order has, a name of `order` or `buckets` that no
  ///   tensor has, tensors of different dtypes in one buffer
  /// \throws Error kUnsupported      more buffers or pieces than kMaxFlatPieces
  FlatBuffers(const ModelMap& map, std::vector<FlatLocal> locals);

  std::span<const FlatLocal> locals() const { return locals_; }
  std::span<const FlatBuffer> buffers() const { return buffers_; }
  /// Rising in both.
  std::span<const FlatPlace> places_of(std::uint32_t local) const { return places_[local]; }
  /// Of one buffer rising, never touching; `begin` means nothing.
  std::span<const FlatPlace> padding() const { return padding_; }

  /// Appends to `out` what the buffers hold of elements [begin, end) of a local tensor and little more, as chunks of
  /// it. `buffer_of` has the index in `stored` of each buffer. Dims lie in `arena`.
  void append_chunks(const Catalog& stored, std::span<const std::uint32_t> buffer_of, std::uint32_t local,
                     std::int64_t begin, std::int64_t end, Arena& arena, std::vector<Chunk>& out) const;

 private:
  /// Where the buckets of a group lie in the buffers of its parts.
  struct BucketPlaces {
    std::int64_t stride;                 ///< Buffers from one part to the next.
    std::vector<std::uint32_t> buffers;  ///< By bucket: of part 0.
    std::vector<std::int64_t> begins;    ///< By bucket: where its slice begins in the buffer.
  };
  std::span<const FlatPlace> places_in(std::uint32_t local, std::int64_t begin, std::int64_t end) const;
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
  std::vector<std::uint32_t> last_padding_;  ///< By buffer: the last of its padding_.
  HashSet<std::string> bucket_ends_;
  std::size_t pieces_ = 0;
};

}  // namespace shard
