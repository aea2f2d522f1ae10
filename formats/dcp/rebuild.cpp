#include "formats/dcp/rebuild.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "formats/dcp/source_files.h"
#include "formats/parts/zip/scan.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/box.h"
#include "libshard/core/hash_table.h"
#include "libshard/io/paths.h"

namespace shard::dcp {

namespace {

constexpr std::uint32_t kMaxCompared = 4096;  // The number of chunks of one tensor that are searched for an overlap.

Error contradiction(std::string_view name, const RankMetadata& first, const RankMetadata& other,
                    std::string_view what) {
  return Error(ErrorCode::kCorruption,
               fmt::format("{} and {} contradict each other: '{}' has {}", first.file, other.file, name, what))
      .in_file(other.file)
      .of_tensor(name)
      .of_rank(other.rank)
      .because("ranks of one save have one dtype and one shape for a name");
}

/// A tensor of one rank.
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
    throw Error(ErrorCode::kCorruption, fmt::format("{} places its rank's items in {}", rank.file, name))
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

  /// The first entry with a given name.
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

  /// The chunks of one tensor are consecutive, sorted by rank.
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
  std::vector<std::uint32_t> first_item_;  // One entry per rank.
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

/// An item found in a file, by offset: a torch.save zip, or the remains of one.
struct FoundItem {
  std::int64_t begin = 0, end = 0;
  bool is_readable = false;    ///< Its pickle is intact.
  bool is_whole = false;       ///< All of it is intact, so its end is certain.
  std::optional<DType> dtype;  ///< The dtype of a tensor's item; empty for an object's item.
  std::vector<std::int64_t> sizes;
};

struct FoundFile {
  std::int64_t bytes = 0;
  std::vector<FoundItem> items;
};

/// An item that the other save has in a file, by offset.
struct ExpectedItem {
  std::int64_t offset = 0, length = 0;
  std::uint32_t item = 0;      ///< Index into Metadata::items.
  std::optional<DType> dtype;  ///< See FoundItem.
  Dims sizes;
};

using ExpectedFiles = std::map<std::string, std::vector<ExpectedItem>>;

FoundItem look_into(const std::shared_ptr<const RandomReader>& file, zip::FoundZip found, bool opaque_globals,
                    Arena& arena) {
  FoundItem item{found.begin, found.end, false, found.is_whole, std::nullopt, {}};
  try {
    const zip::ZipReader zip(file, found.begin, found.end - found.begin, std::move(found.records));
    const zip::Record* const record = zip.find("data.pkl");
    if (record == nullptr) return item;
    Arena scratch(arena.budget());
    pickle::LoadOptions options;
    options.file = file->name();
    options.allow = pickle::is_known_global;
    options.opaque_unknown = opaque_globals;
    const std::vector<std::byte> bytes = zip.read(*record, arena);
    const std::optional<torch_save::TensorView> view =
        torch_save::as_tensor(scratch, *pickle::load(scratch, bytes, options));
    item.is_readable = true;
    if (!view) return item;
    item.dtype = view->dtype;
    item.sizes.assign(view->shape.begin(), view->shape.end());
  } catch (const Error& error) {
    if (!is_damage(error)) throw;
  }
  return item;
}

FoundFile items_in(const std::shared_ptr<const RandomReader>& file, bool opaque_globals, Arena& arena) {
  arena.earn(0, file->allocated_bytes(0, file->size()));
  FoundFile all{file->size(), {}};
  for (zip::FoundZip& found : zip::scan_zips(file, 0, file->size(), arena)) {
    all.items.push_back(look_into(file, std::move(found), opaque_globals, arena));
  }
  return all;
}

ExpectedFiles expected_files(const Metadata& like) {
  ExpectedFiles files;
  const auto add = [&](std::uint32_t index, std::optional<DType> dtype, Dims sizes) {
    const Item& item = like.items[index];
    files[like.files[item.file]].push_back({item.offset, item.length, index, dtype, sizes});
  };
  for (const ObjectEntry& object : like.objects) add(object.item, std::nullopt, {});
  for (const TensorEntry& tensor : like.tensors) {
    for (std::uint32_t c = 0; c < tensor.chunk_count; ++c) {
      const ChunkEntry& chunk = like.chunks[tensor.first_chunk + c];
      add(chunk.item, tensor.dtype, chunk.sizes);
    }
  }
  for (auto& [name, items] : files) {
    std::ranges::sort(items, {}, [](const ExpectedItem& each) { return std::pair(each.offset, each.item); });
    const auto again = std::ranges::unique(items, {}, &ExpectedItem::item);  // Replicas of one item.
    items.erase(again.begin(), again.end());
  }
  return files;
}

bool is_same_kind(const FoundItem& found, const ExpectedItem& expected) {
  return found.dtype == expected.dtype && (!found.dtype || std::ranges::equal(found.sizes, expected.sizes));
}

/// The pairs of found and expected items in one file.
struct Pairing {
  struct Pair {
    std::size_t found, expected;
  };
  std::vector<Pair> pairs;
  std::string why_unnamed;   ///< The reason why items have no pair.
  bool contradicts = false;  ///< The other save has different items in this file.
  bool is_complete = false;  ///< Each of the other save's items in this file exists, or is damaged bytes of its length.
};

/// False for a damaged item, which may be two items with a lost border. The last item may be truncated.
bool has_sure_end(const std::vector<FoundItem>& found, std::size_t i, const ExpectedItem& expected) {
  const std::int64_t length = found[i].end - found[i].begin;
  const bool is_cut = i + 1 == found.size() && found[i].is_readable && length < expected.length;
  return found[i].is_whole || length == expected.length || is_cut;
}

/// Finds the expected items from `next` on that fill exactly `bytes`. \returns the index of the item after them; 0 if
/// there are none.
std::size_t behind_hole(std::span<const ExpectedItem> expected, std::size_t next, std::int64_t bytes) {
  while (next < expected.size() && bytes > 0) bytes -= expected[next++].length;
  return bytes == 0 ? next : 0;
}

Pairing pair_by_order(const FoundFile& file, std::span<const ExpectedItem> expected) {
  const std::vector<FoundItem>& found = file.items;
  Pairing pairing;
  std::size_t next = 0;
  std::int64_t at = 0;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].begin != at) next = behind_hole(expected, next, found[i].begin - at);
    if (found[i].begin != at && next == 0) {
      pairing.why_unnamed = "damaged bytes precede it";
      return pairing;
    }
    pairing.contradicts = next == expected.size() || (found[i].is_readable && !is_same_kind(found[i], expected[next]));
    if (pairing.contradicts) return pairing;
    at = found[i].begin;
    if (!has_sure_end(found, i, expected[next])) continue;  // For the order of items, these bytes count as damaged.
    at = found[i].end;
    pairing.pairs.push_back({i, next++});
  }
  pairing.why_unnamed = "its end is damaged";
  pairing.is_complete = next == expected.size() || behind_hole(expected, next, file.bytes - at) == expected.size();
  return pairing;
}

/// Pairs tensors whose dtype and sizes occur only once in the file, among the found and among the expected items.
Pairing pair_by_kind(const std::vector<FoundItem>& found, std::span<const ExpectedItem> expected) {
  using Kind = std::pair<DType, std::vector<std::int64_t>>;
  std::map<Kind, std::pair<std::vector<std::size_t>, std::vector<std::size_t>>> kinds;
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].is_readable && found[i].dtype) kinds[{*found[i].dtype, found[i].sizes}].first.push_back(i);
  }
  for (std::size_t i = 0; i < expected.size(); ++i) {
    const ExpectedItem& item = expected[i];
    if (item.dtype) kinds[{*item.dtype, {item.sizes.begin(), item.sizes.end()}}].second.push_back(i);
  }
  Pairing pairing;
  for (const auto& [kind, items] : kinds) {
    if (items.first.size() > items.second.size()) {
      pairing.pairs.clear();
      pairing.why_unnamed = "the other checkpoint's file has different items: it may be from a different rank or save";
      return pairing;
    }
    if (items.first.size() == 1 && items.second.size() == 1) {
      pairing.pairs.push_back({items.first.front(), items.second.front()});
    }
  }
  pairing.why_unnamed =
      "the other checkpoint has a different order of items, and not exactly one has its dtype and sizes";
  return pairing;
}

/// Copies the offsets of found items to the items of the other save's metadata.
class Placer {
 public:
  Placer(Metadata& metadata, Findings& findings) : metadata_(metadata), findings_(findings) {
    is_found_.assign(metadata.items.size(), false);
  }

  void place(const std::string& file, const std::vector<FoundItem>& found, std::span<const ExpectedItem> expected,
             const Pairing& pairing) {
    std::vector<bool> is_named(found.size());
    for (const auto& [from, to] : pairing.pairs) {
      is_named[from] = true;
      Item& item = metadata_.items[expected[to].item];
      item.offset = found[from].begin;
      item.length = found[from].end - found[from].begin;
      item.zstd = false;
      is_found_[expected[to].item] = true;
    }
    placed_ += pairing.pairs.size();
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (!is_named[i] && found[i].is_readable) lose(file, found[i], pairing.why_unnamed);
    }
  }

  std::vector<std::uint32_t> lost_items() const {
    std::vector<std::uint32_t> lost;
    for (std::uint32_t i = 0; i < is_found_.size(); ++i) {
      if (!is_found_[i]) lost.push_back(i);
    }
    return lost;
  }
  std::size_t placed() const { return placed_; }

 private:
  void lose(const std::string& file, const FoundItem& item, const std::string& why) {
    Loss loss;
    loss.file = file;
    loss.why =
        fmt::format("the name of an item of {} bytes at {} is unknown: {}", item.end - item.begin, item.begin, why);
    if (item.dtype) loss.dtype = dtype_name(*item.dtype);
    if (item.dtype) loss.shape = item.sizes;
    findings_.lose(std::move(loss));
  }

  Metadata& metadata_;
  Findings& findings_;
  std::vector<bool> is_found_;
  std::size_t placed_ = 0;
};

/// \throws Error kNotFound  it has no metadata either; kUnsupported  each of its ranks has its own. Others: as
///   parse_metadata
Metadata read_like(const Source& like, Arena& arena, const MetadataOptions& options) {
  const std::string& folder = like.paths.front();
  std::vector<std::string> ignored;
  if (const int rank = find_metadata(*like.store, folder, throwing_findings(), ignored).front().rank; rank >= 0) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot take the names of tensors from '{}'", folder))
        .in_file(join_path(folder, fmt::format("__{}.metadata", rank)))
        .because("each of its ranks has its own metadata (use_collectives=False)");
  }
  const auto file = like.store->open_below(folder, std::string(kMetadataName));
  const std::vector<std::byte> bytes = shard::read_metadata(*file, 0, file->size(), arena);
  Metadata metadata = parse_metadata(arena, bytes, join_path(folder, kMetadataName), options);
  metadata.lost_note.clear();
  return metadata;
}

Error unnamed(const RebuildFrom& from, const std::string& why) {
  Error error(ErrorCode::kCorruption, "cannot identify the tensors in the items");
  return error.in_file(join_path(from.folder, kMetadataName))
      .of_kind(FindingKind::kMissingFile)
      .because(why.empty() ? ".metadata is lost" : why);
}

using FoundFiles = std::map<std::string, FoundFile>;

/// Lists the found items, for an error.
std::string summary(const FoundFiles& found) {
  std::size_t tensors = 0, objects = 0;
  for (const auto& [name, file] : found) {
    for (const FoundItem& item : file.items) ++(item.dtype ? tensors : objects);
  }
  return fmt::format("the {} .distcp files contain {} boxes of tensors and {} objects, and items have no names",
                     found.size(), tensors, objects);
}

/// Removes files that the other save does not have, if the files that it has contain all of its items. They are left
/// over from an earlier save. Otherwise, such a file is evidence that this save was divided differently.
void remove_stale(FoundFiles& found, const ExpectedFiles& expected) {
  const bool is_complete = std::ranges::all_of(expected, [&](const auto& file) {
    const auto there = found.find(file.first);
    return there != found.end() && pair_by_order(there->second, file.second).is_complete;
  });
  if (is_complete) std::erase_if(found, [&](const auto& file) { return !expected.contains(file.first); });
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

Metadata rebuild_metadata(const RebuildFrom& from, const std::string& why, Arena& arena, Findings& findings,
                          std::vector<std::uint32_t>& lost_items) {
  FoundFiles found;
  for (const std::string& name : from.store.list(from.folder)) {
    if (file_numbers(name).rank < 0) continue;
    found[name] = items_in(from.store.open_below(from.folder, name), from.options.opaque_globals, arena);
  }
  const std::string reason = fmt::format("{}; {}", why.empty() ? ".metadata is lost" : why, summary(found));
  if (from.like == nullptr) throw Error(unnamed(from, reason).suggest(Remedy::kNameLike));
  Metadata metadata = read_like(*from.like, arena, from.options);
  ExpectedFiles expected = expected_files(metadata);
  remove_stale(found, expected);
  std::map<std::string, Pairing> pairings;
  for (const auto& [name, file] : found) pairings[name] = pair_by_order(file, expected[name]);
  // One file has a different order, so the order is unknown in all of them.
  const bool is_ordered = std::ranges::none_of(pairings, [](const auto& each) { return each.second.contradicts; });
  Placer placer(metadata, findings);
  for (const auto& [name, file] : found) {
    placer.place(name, file.items, expected[name],
                 is_ordered ? pairings[name] : pair_by_kind(file.items, expected[name]));
  }
  if (placer.placed() == 0) {
    throw Error(unnamed(from, reason).hint("pass a checkpoint of the same job; this one has different items"));
  }
  lost_items = placer.lost_items();
  findings.mend(fmt::format("rebuilt .metadata: names, shapes and offsets of {} items are those of '{}', by {}",
                            placer.placed(), base_name(from.like->paths.front()),
                            is_ordered ? "their order, dtypes and sizes" : "dtypes and sizes that no others have"));
  return metadata;
}

void clip_items(Metadata& metadata, const std::vector<std::uint32_t>& lost_items, const Catalog& catalog,
                Findings& findings) {
  for (const std::uint32_t item : lost_items) {
    findings.lose_storage(item, Error(ErrorCode::kCorruption, "no item was found for it"));
  }
  for (std::uint32_t i = 0; i < metadata.items.size(); ++i) {
    Item& item = metadata.items[i];
    const File& file = catalog.files[item.file];
    const std::int64_t there = file.bytes - item.offset;
    if (item.length <= there) continue;
    item.length = std::max<std::int64_t>(there, 0);
    item.is_cut = true;
    item.offset = std::min(item.offset, file.bytes);
    if (there > 0) continue;
    findings.lose_storage(i, Error(ErrorCode::kCorruption, fmt::format("{} ends before it", file.path)));
  }
}

}  // namespace shard::dcp
