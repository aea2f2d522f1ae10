/// \file
/// A target catalog while it is built: the storages that its tensors share, and the step that divides tensors
/// (target_cut.cpp). Inside libshard/catalog/targets only.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/catalog/targets/format_traits.h"
#include "libshard/core/checked.h"

namespace shard {

/// A run of bytes of a source storage that some view uses, and its position in the target's storage.
struct UsedSpan {
  std::int64_t begin, end;  ///< Bytes in the source storage.
  std::int64_t to;          ///< Bytes in the target storage.
};

/// A source storage whose bytes are copied unchanged.
struct SharedStorage {
  std::uint32_t from;           ///< Index of the source storage.
  std::vector<UsedSpan> spans;  ///< Sorted by begin, without overlaps.
  std::int64_t bytes = 0;       ///< The target storage's size: the spans one after the other.
};

/// The selection's tensors seen as views, for formats with storages and strides.
class SharingPlan {
 public:
  /// If `enabled` is false, nothing is shared. `alias` still returns the tensor whose bytes a tensor repeats.
  SharingPlan(const Catalog& source, const Selection& selection, bool enabled);

  /// The index into `storages` of the storage of which this selected tensor is a view. kNoIndex: it is stored
  /// row-major.
  std::uint32_t shared(std::size_t selected) const { return enabled_ ? shared_[selected] : kNoIndex; }
  const std::vector<SharedStorage>& storages() const { return storages_; }
  /// The first selected tensor with an equal view and an equal cast, or kNoIndex.
  std::uint32_t alias(std::size_t selected) const { return alias_[selected]; }
  /// The begin of a view of a shared storage in the target's, in elements.
  std::int64_t first(std::size_t selected) const;
  /// Warnings about tensors that no longer share storage: cast tensors; with `cut`, all but aliases.
  std::vector<std::string> warnings(bool cut) const;

 private:
  const Tensor& tensor(std::size_t selected) const { return source_.tensors[selection_.tensors[selected].source]; }
  const Chunk& chunk(std::size_t selected) const { return source_.chunks[tensor(selected).first_chunk]; }
  std::uint32_t storage(std::size_t selected) const { return source_.stored[chunk(selected).stored].storage; }
  bool is_view(std::size_t selected) const;
  bool is_verbatim(std::size_t selected) const;
  void find_aliases();
  void group_views();
  void collect_spans();

  const Catalog& source_;
  const Selection& selection_;
  const bool enabled_;
  std::vector<std::uint32_t> alias_, shared_;
  std::vector<SharedStorage> storages_;
};

/// The state that the steps of make_target share. `selected` is an index into Selection::tensors. Target tensors have
/// the same indices. Ownership: source, selection and traits must outlive it.
struct TargetDraft {
  /// Copies the metadata and records the borrowed arenas. There are no tensors yet.
  TargetDraft(const Catalog& from, const Selection& what, const FormatTraits& format);

  const Tensor& source_tensor(std::size_t selected) const { return source.tensors[selection.tensors[selected].source]; }
  /// Starts a tensor in `builder`.
  Tensor& begin_tensor(std::size_t selected);
  /// A stored tensor with the properties of the source's first one.
  StoredTensor make_stored(std::size_t selected, Dims shape) const;
  /// A storage with the location of the source's first one. The caller sets its file.
  std::uint32_t add_storage(std::size_t selected, std::int64_t bytes);
  static std::int64_t bytes_of(Dims sizes, DType dtype) { return checked_bytes(checked_numel(sizes), dtype); }

  const Catalog& source;
  const Selection& selection;
  const FormatTraits& traits;
  const SharingPlan sharing;
  Catalog target;
  CatalogBuilder builder{target};
};

/// Adds the selected tensors in pieces, each row-major in a separate storage, with its rank in StoredTensor::rank. With
/// `traits.aliases`, aliases with equal pieces share storages. All other sharing ends, with a warning. A tensor without
/// elements that no rank would store goes to rank 0. Sets shardings and world_size.
///
/// Shardings describe in placements what the chunks describe in boxes, if placements can express it. For RanksLayout
/// (one axis without a name) and MeshLayout, they are the layout's, with negative and missing dimensions resolved. For
/// KeepLayout and LikeLayout, they are those of the followed checkpoint. If that has none and the format keeps empty
/// pieces, they are S(d) on one axis if its boxes are those of torch.chunk, one per rank in order. A rule that shards a
/// dimension in a different order than slowest axis first has none.
///
/// If a format joins a rank's boxes (not `single_box_items`), KeepLayout and LikeLayout join them according to the
/// sharding, and add empty pieces if the format keeps them.
///
/// \pre the layout may shard tensors, and the format has pieces
/// \returns whether some aliases are stored apart from their originals.
/// \throws Error  as make_target.
bool add_pieces(TargetDraft& draft, const Layout& layout);

/// Adds one file per rank that stores something, in rank order. Rank 0 has one even if it stores only objects. With
/// `replicate_whole_tensors`, every rank of world_size has one. Storages receive the files of their ranks. \pre
/// add_pieces, and objects are added
void add_rank_files(TargetDraft& draft);

}  // namespace shard
