#include "formats/dcp/rank_metadata.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/dcp/names.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"

namespace shard::dcp {
namespace {

constexpr std::uint32_t kMaxCompared = 4096;  // Chunks of one tensor between which an overlap is looked for.

Error contradiction(std::string_view name, const RankMetadata& first, const RankMetadata& other,
                    std::string_view what) {
  return Error(ErrorCode::kCorruption,
               fmt::format("{} and {} contradict each other: '{}' has {}", first.file, other.file, name, what))
      .in_file(other.file)
      .of_tensor(name)
      .of_rank(other.rank)
      .because("ranks of one save have one dtype and one shape for a name");
}

/// A tensor as one rank has it.
struct Part {
  std::uint32_t tensor;  ///< Index in the merged metadata.
  std::uint32_t rank;    ///< Index into the ranks.
  const TensorEntry* entry;
};

class Merger {
 public:
  explicit Merger(std::vector<RankMetadata>& ranks) : ranks_(ranks) {}

  Metadata run() {
    out_.maker = ranks_.front().metadata.maker;
    out_.has_paths = ranks_.front().metadata.has_paths;
    for (std::uint32_t r = 0; r < ranks_.size(); ++r) {
      add_items(ranks_[r]);
      add_tensors(r);
      add_objects(r);
    }
    std::ranges::stable_sort(out_.objects, {}, [](const ObjectEntry& each) { return std::pair(each.name, each.rank); });
    add_chunks();
    return std::move(out_);
  }

 private:
  void add_items(RankMetadata& rank) {
    first_item_.push_back(static_cast<std::uint32_t>(out_.items.size()));
    const std::uint32_t first_file = static_cast<std::uint32_t>(out_.files.size());
    for (std::string& name : rank.metadata.files) {
      check_file(rank, name);
      out_.files.push_back(std::move(name));
    }
    for (Item item : rank.metadata.items) {
      item.file += first_file;
      out_.items.push_back(item);
    }
    for (std::string& warning : rank.metadata.warnings) {
      out_.warnings.push_back(fmt::format("{}: {}", rank.file, warning));
    }
  }

  static void check_file(const RankMetadata& rank, const std::string& name) {
    const int owner = file_numbers(name).rank;
    if (owner == rank.rank) return;
    throw Error(ErrorCode::kCorruption, fmt::format("{} says that its rank's items lie in {}", rank.file, name))
        .in_file(rank.file)
        .of_rank(rank.rank)
        .expected(fmt::format("__{}_N.distcp", rank.rank))
        .found(name)
        .because("ranks that save without collectives write files of their own")
        .of_kind(FindingKind::kRankMismatch);
  }

  void add_tensors(std::uint32_t r) {
    for (const TensorEntry& entry : ranks_[r].metadata.tensors) {
      const auto [known, is_new] =
          known_.try_emplace(entry.name, Known{static_cast<std::uint32_t>(out_.tensors.size()), r, &entry});
      if (is_new) {
        out_.tensors.push_back(entry);
      } else {
        check_agreement(known, r, entry);
        TensorEntry& merged = out_.tensors[known.index];
        merged.requires_grad = merged.requires_grad || entry.requires_grad;
      }
      parts_.push_back({known.index, r, &entry});
    }
  }

  void add_objects(std::uint32_t r) {
    for (ObjectEntry entry : ranks_[r].metadata.objects) {
      const auto [known, is_new] = known_.try_emplace(entry.name, Known{0, r, nullptr});
      if (!is_new && known.tensor != nullptr) {
        throw contradiction(entry.name, ranks_[known.rank], ranks_[r],
                            "a tensor in the former, an object in the latter");
      }
      entry.item += first_item_[r];
      entry.rank = ranks_[r].rank;
      out_.objects.push_back(entry);
    }
  }

  /// What was first seen under a name.
  struct Known {
    std::uint32_t index;  ///< Into the merged tensors.
    std::uint32_t rank;
    const TensorEntry* tensor;  ///< Null for an object.
  };

  void check_agreement(const Known& known, std::uint32_t r, const TensorEntry& entry) const {
    const RankMetadata &first = ranks_[known.rank], &other = ranks_[r];
    if (known.tensor == nullptr) {
      throw contradiction(entry.name, first, other, "an object there and a tensor here");
    }
    if (known.tensor->dtype != entry.dtype) {
      throw contradiction(entry.name, first, other, "two dtypes")
          .expected(dtype_name(known.tensor->dtype))
          .found(dtype_name(entry.dtype))
          .of_kind(FindingKind::kDtypeMismatch);
    }
    if (known.tensor->size != entry.size || known.tensor->stored_size != entry.stored_size) {
      throw contradiction(entry.name, first, other, "two shapes")
          .expected(to_string(known.tensor->size.span()))
          .found(to_string(entry.size.span()))
          .of_kind(FindingKind::kShapeMismatch);
    }
  }

  /// Chunks of one tensor lie side by side, by rank.
  void add_chunks() {
    std::ranges::stable_sort(parts_, {}, &Part::tensor);
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const Part& part = parts_[i];
      TensorEntry& tensor = out_.tensors[part.tensor];
      if (i == 0 || parts_[i - 1].tensor != part.tensor) {
        tensor.first_chunk = static_cast<std::uint32_t>(out_.chunks.size());
        tensor.chunk_count = 0;
      }
      for (std::uint32_t c = 0; c < part.entry->chunk_count; ++c) {
        ChunkEntry chunk = ranks_[part.rank].metadata.chunks[part.entry->first_chunk + c];
        chunk.item += first_item_[part.rank];
        out_.chunks.push_back(chunk);
        ++tensor.chunk_count;
      }
    }
  }

  std::vector<RankMetadata>& ranks_;
  Metadata out_;
  std::vector<std::uint32_t> first_item_;  // Of each rank.
  HashMap<std::string_view, Known> known_;
  std::vector<Part> parts_;
};

bool overlap(const Chunk& a, const Chunk& b) {
  const bool is_replica = a.offsets == b.offsets && a.sizes == b.sizes;
  return !is_replica && !intersect(Box(a.offsets, a.sizes), Box(b.offsets, b.sizes)).empty();
}

std::string shown(const Chunk& chunk) {
  return fmt::format("{} at {}", to_string(chunk.sizes.span()), to_string(chunk.offsets.span()));
}

}  // namespace

Metadata merge_ranks(std::vector<RankMetadata> ranks) { return Merger(ranks).run(); }

void name_overlapping_ranks(Error& error, const Catalog& catalog) {
  const auto tensor = std::ranges::find(catalog.tensors, std::string_view(error.tensor()), &Tensor::name);
  if (error.kind() != FindingKind::kOverlap || tensor == catalog.tensors.end() || tensor->chunk_count > kMaxCompared)
    return;
  const std::span<const Chunk> chunks = catalog.chunks_of(*tensor);
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    for (std::size_t k = 0; k < i; ++k) {
      if (!overlap(chunks[i], chunks[k])) continue;
      const int first = catalog.stored_of(chunks[k]).rank, other = catalog.stored_of(chunks[i]).rank;
      error.because(fmt::format("__{}.metadata has a chunk of {}, __{}.metadata one of {}", first, shown(chunks[k]),
                                other, shown(chunks[i])));
      error.in_file(fmt::format("__{}.metadata", other)).of_rank(other);
      return;
    }
  }
}

}  // namespace shard::dcp
