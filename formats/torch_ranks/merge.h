/// \file
/// Merges the leaves of all ranks' files into tensors and objects of one catalog. Inside formats/torch_ranks only.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/torch/saved_files.h"
#include "formats/torch_ranks/rank_file.h"
#include "formats/torch_ranks/shardings.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/layouts/layout.h"
#include "libshard/core/error.h"
#include "libshard/core/findings.h"

namespace shard::torch_ranks {

/// Fills `catalog` (tensors, objects, chunks, shardings, root) from `ranks`, which are sorted by rank.
/// `catalog.world_size` is set before.
///
/// Shards become chunks of one tensor. A plain tensor or object that is equal on all ranks that have it becomes one
/// entry, with the lowest rank's copy; Tensor::rank is set if some ranks lack it. All others become one entry per rank.
/// With `own_tensors`, so do entries that some ranks lack. With `layout`, plain tensors that a rule shards are slices.
/// The root is rank 0's tree, or null if that lacks a name. Calls in it that rebuild a tensor become kTensor values.
///
/// Reports kCorruption if ranks contradict one another, with tensor, file, expected and found. If the sink continues,
/// the tensor is skipped.
void merge(Catalog& catalog, torch_save::SavedFiles& files, const std::vector<RankFile>& ranks,
           const MeshLayout* layout, bool own_tensors, Findings& findings);

// The parts of one tensor: the code that all kinds of tensors share.

/// One rank's leaf under a name.
struct Holder {
  const RankFile* file;
  const RankLeaf* leaf;

  std::int32_t rank() const { return static_cast<std::int32_t>(*file->rank); }
  /// \pre the leaf is a plain tensor
  const torch_save::TensorView& view() const { return file->plain[leaf->item]; }
};
/// The leaves of one name, by rank.
using Holders = std::span<const Holder>;

/// The context of merging, for all tensors.
struct MergeContext {
  Catalog& catalog;
  CatalogBuilder builder;  ///< The builder of `catalog`.
  torch_save::SavedFiles& files;
  Shardings& shardings;
  std::int64_t world_size;
};

/// The start of an error about `holder`'s part: kCorruption with tensor, file and rank.
Error contradiction(const MergeContext& context, const Holder& holder, FindingKind kind, const std::string& message);

/// The error of a part whose `what` is not that of the first one, because the files come from different saves.
Error differs_from_first(const MergeContext& context, Holders holders, const Holder& holder, FindingKind kind,
                         std::string_view what);

struct WholeTensor {
  Dims shape;
  DType dtype{};
};
/// \throws Error kCorruption  the whole tensor of a part differs from that of the first part
void check_whole(const MergeContext& context, Holders holders, const Holder& holder, const WholeTensor& own,
                 const WholeTensor& first);

/// Adds the tensor of the `local` call as a stored tensor of `holder`'s rank. \returns its index.
/// \throws Error kCorruption, kUnsupported  see as_tensor; its dtype differs from `dtype` (kind dtype_mismatch).
std::uint32_t add_stored(MergeContext& context, const Holder& holder, const torch_save::TensorView& view);
/// The view of a local shard. \throws Error  it is not a plain tensor, or its dtype or shape differs.
torch_save::TensorView local_view(MergeContext& context, const Holder& holder, const Value& local, DType dtype,
                                  std::span<const std::int64_t> shape);

/// True if both have the same dtype, shape and element bytes; strides may differ. Locates their storages. A lost tensor
/// (for repair) equals any other.
/// \throws Error kCorruption  the stored bytes contradict the metadata, or cannot be decoded.
/// Cost: reads both up to the first difference. Memory: two blocks of 256 KiB.
bool is_equal(torch_save::SavedFiles& files, const Catalog& catalog, const StoredTensor& a, const StoredTensor& b);

/// Adds a chunk for each box of `piece`, or one empty chunk for a piece without elements.
void add_pieces(MergeContext& context, const RankPiece& piece, std::uint32_t stored);

/// Starts the tensor with the name of that leaf. \returns its index.
std::uint32_t begin_tensor(MergeContext& context, const Holder& first, DType dtype, Dims shape);

std::uint32_t merge_sharded_tensor(MergeContext& context, Holders holders);
std::uint32_t merge_dtensor(MergeContext& context, Holders holders);
/// \pre `rule` shards the tensor.
std::uint32_t merge_slices(MergeContext& context, Holders holders, const MeshLayout& layout,
                           const MeshLayout::Rule& rule);
/// The checks of merge_slices, which throw its errors, without a change of the catalog's tensors.
void check_slices(MergeContext& context, Holders holders, const MeshLayout& layout, const MeshLayout::Rule& rule);

}  // namespace shard::torch_ranks
