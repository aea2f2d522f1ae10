#include "formats/dcp/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "formats/dcp/check_items.h"
#include "formats/dcp/format.h"
#include "formats/dcp/item_store.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/object_items.h"
#include "formats/dcp/rank_copies.h"
#include "formats/dcp/rebuild.h"
#include "formats/dcp/source_files.h"
#include "formats/dcp/writer.h"
#include "formats/torch/check_saved.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/catalog/layouts/flat_run.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/copied_files.h"
#include "libshard/io/paths.h"

namespace shard::dcp {

namespace {

/// Adds the item of a chunk as a stored tensor. \returns its index.
std::uint32_t add_stored(CatalogBuilder& builder, const TensorEntry& entry, const ChunkEntry& chunk) {
  Catalog& catalog = builder.catalog();
  Storage& storage = catalog.storages[chunk.item];
  storage.bytes = checked_bytes(checked_numel(chunk.sizes.span()), entry.dtype);
  const std::uint32_t stored =
      builder.add_row_major(chunk.item, chunk.sizes, entry.dtype, catalog.files[storage.file].rank);
  catalog.stored[stored].requires_grad = entry.requires_grad;
  return stored;
}

/// Adds the boxes into which a run of a block's elements is divided, see TensorEntry::stored_size.
class RunAdder {
 public:
  RunAdder(CatalogBuilder& builder, const TensorEntry& entry) : builder_(builder), block_(at(entry.size.size())) {
    for (std::size_t d = 0; d < block_.size(); ++d) {
      block_[d] = entry.size[static_cast<int>(d)] / entry.stored_size[static_cast<int>(d)];
    }
    Arena& arena = *builder.catalog().arena;
    strides_ = row_major_strides(arena, arena.dims(block_));
  }

  /// Adds the run of one chunk. Its offsets but the last are the block's indices, so the block starts at index times
  /// block size in every dimension. The last offset and size are the run in the block's row-major order: a few boxes.
  void add(const ChunkEntry& chunk, std::uint32_t stored) {
    const auto last = static_cast<int>(block_.size());
    std::vector<std::int64_t> corner(block_.size());
    for_each_box_of_run(
        block_, chunk.offsets[last], chunk.sizes[last],
        [&](std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes, std::int64_t before) {
          for (std::size_t d = 0; d < block_.size(); ++d) {
            corner[d] = chunk.offsets[static_cast<int>(d)] * block_[d] + offsets[d];
          }
          builder_.add_chunk(stored, corner, sizes, strides_, before);
        });
  }

 private:
  static std::vector<std::int64_t> at(int dimensions) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(dimensions));
  }

  CatalogBuilder& builder_;
  std::vector<std::int64_t> block_;
  Dims strides_;
};

/// Appends a tensor of `metadata` with its chunks. Each chunk is a stored tensor of its own in the storage of its item.
/// The boxes of a run of elements (TensorEntry::stored_size) are chunks of one stored tensor. Until the item is
/// located, the stored tensor is assumed to be row-major and to fill its storage. \throws Error  sizes overflow; the
/// catalog may then contain a part of the tensor.
void add_tensor(Catalog& catalog, const Metadata& metadata, const TensorEntry& entry) {
  CatalogBuilder builder(catalog);
  builder.begin(entry.name, entry.path, entry.dtype, entry.size);
  std::optional<RunAdder> runs;
  if (!entry.stored_size.empty()) runs.emplace(builder, entry);
  for (std::uint32_t i = 0; i < entry.chunk_count; ++i) {
    const ChunkEntry& chunk = metadata.chunks[entry.first_chunk + i];
    const std::uint32_t stored = add_stored(builder, entry, chunk);
    if (runs) {
      runs->add(chunk, stored);
    } else {
      builder.add_chunk({chunk.offsets, chunk.sizes, catalog.stored[stored].strides, 0, stored});
    }
  }
}

class DcpReader : public Reader {
 public:
  DcpReader(const SourceStore& store, const std::string& folder, const OpenOptions& options, const FolderForm& form)
      : form_(form),
        store_(store),
        folder_(folder),
        findings_(*options.findings),
        threads_(options.threads),
        opaque_globals_(options.opaque_globals || form.keeps_objects_whole),
        items_(store_, folder_, catalog_, findings_),
        objects_(form_, opaque_globals_, catalog_, items_, findings_) {
    catalog_.format = form.format;
    Metadata metadata = findings_.goes_on() ? salvage_metadata(options.like) : read_metadata();
    if (!metadata.lost_note.empty()) catalog_.metadata[kLostNote] = metadata.lost_note;
    if (form_.is_unreadable != nullptr) set_apart(metadata, form_.is_unreadable, form_.why_unreadable);
    const std::vector<bool> are_there = add_files(store_, folder_, metadata, options, catalog_);
    objects_.read_common(store_, folder_, metadata.objects);
    CollectedFindings of_items;  // A repair inspects every item.
    check_items(metadata, catalog_, are_there, findings_.goes_on() ? of_items : findings_,
                [this](std::uint32_t index) { return file(index); });
    if (findings_.goes_on()) clip_items(metadata, lost_items_, catalog_, findings_);
    items_.set_items(std::move(metadata.items));
    fill_catalog(metadata, options.metadata_only);
  }

  const Catalog& catalog() const override { return catalog_; }

  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return items_.file(index); }

  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return items_.bytes_of(storage);
  }

  void locate(std::span<const std::uint32_t> tensors) override {
    items_.locate(tensors);
    if (!is_of_ranks_ && !findings_.goes_on()) copies_.look(catalog_, tensors, bytes_of_, findings_);
  }

  bool check_container(std::uint32_t index, ContainerReport& report) const override {
    if (index < metadata_files_) {
      check_metadata_file(*file(index), report);
    } else if (index == objects_.common_file()) {
      torch_save::check_saved_file(file(index), report);
    } else {
      check_item_file(file(index), items_.of_file(index), report);
    }
    return true;
  }

  void load_objects() override { objects_.load_all(); }
  std::int64_t unread_object_bytes() const override { return objects_.unread_bytes(); }

 private:
  Metadata read_metadata() { return read_files(find_metadata(store_, folder_, findings_, catalog_.warnings)); }

  MetadataOptions metadata_options() const { return {opaque_globals_, form_.sets_short_apart, form_.names_megatron}; }

  Metadata read_files(const std::vector<MetadataFile>& files) {
    std::vector<RankMetadata> ranks;
    for (const MetadataFile& each : files) {
      const std::unique_ptr<RandomReader> file = store_.open_below(folder_, each.name);
      const std::vector<std::byte> bytes = shard::read_metadata(*file, 0, file->size(), *catalog_.arena);
      catalog_.files.push_back({each.name, file->size(), each.rank, file->identity()});
      ranks.push_back({each.rank, each.name, parse_metadata(*catalog_.arena, bytes, each.name, metadata_options())});
    }
    metadata_files_ = static_cast<std::uint32_t>(catalog_.files.size());
    is_of_ranks_ = ranks.front().rank >= 0;
    return is_of_ranks_ ? merge_ranks(std::move(ranks)) : std::move(ranks.front().metadata);
  }

  /// Returns the first intact metadata: .metadata, the leftover of an interrupted save, or per-rank metadata; otherwise
  /// rebuilds it.
  Metadata salvage_metadata(const Source* like) {
    std::string why;
    for (const MetadataChoice& choice : metadata_choices(store_, folder_, findings_)) {
      try {
        Metadata metadata = read_files(choice.files);
        if (!why.empty()) findings_.mend(fmt::format("rebuilt .metadata from {}: {}", choice.shown, why));
        return metadata;
      } catch (const Error& error) {
        if (!is_damage(error)) throw;
        catalog_.files.clear();
        why += fmt::format("{}{}", why.empty() ? "" : "; ", reason_of(error));
      }
    }
    catalog_.files.push_back({std::string(kMetadataName), 0, -1});
    is_of_ranks_ = false;
    is_rebuilt_ = true;
    return rebuild_metadata({store_, folder_, like, metadata_options()}, why, *catalog_.arena, findings_, lost_items_);
  }

  void fill_catalog(Metadata& metadata, bool metadata_only) {
    catalog_.format_version = metadata.maker;
    catalog_.warnings.insert(catalog_.warnings.end(), metadata.warnings.begin(), metadata.warnings.end());
    if (metadata.defect) findings_.tolerate(Error(*metadata.defect).in_file(catalog_.files.front().path));
    try {
      add_tensors(metadata);
      if (findings_.goes_on()) check_all_items();
      if (is_of_ranks_) rank_copies_.split_differing();
      objects_.open(std::move(metadata.objects), rank_copies_, !metadata_only || !metadata.has_paths);
      finish();
    } catch (Error& error) {
      add_details(error);
      throw;
    }
  }

  /// Adds the file in which the tensor's problem is recorded.
  void add_details(Error& error) const {
    if (is_of_ranks_) name_overlapping_ranks(error, catalog_);
    error.in_file(catalog_.files.front().path);
  }

  void check_all_items() {
    std::vector<std::uint32_t> all(catalog_.tensors.size());
    std::iota(all.begin(), all.end(), 0U);
    items_.locate(all);
    if (!is_rebuilt_) items_.look_for_misplaced();
    if (!is_of_ranks_) misplace_copies(all);  // The metadata of ranks contains replicas.
    items_.lose_misplaced();
    for (const ItemStore::Unread& each : items_.unread()) {
      if (is_of_ranks_) throw Error(each.why);
      objects_.keeper().keep_tensor(each.tensor, each.why);
    }
  }

  /// If one of the two is misplaced for another reason, it is the copy.
  void misplace_copies(std::span<const std::uint32_t> tensors) {
    std::vector<FilePair> pairs = copied_files(catalog_, tensors, bytes_of_);
    std::erase_if(pairs, [this](const auto& each) {
      return items_.is_misplaced(each.first) || items_.is_misplaced(each.second);
    });
    for (const FilePair& pair : pairs) {
      for (const std::uint32_t file : {pair.first, pair.second}) items_.misplace(file, copied_file(catalog_, pair));
    }
  }

  // The numbers inside objects follow the order of tensors, like those of a tree.
  void finish() {
    catalog_.root = make_list(*catalog_.arena, ValueKind::kList, objects_.roots());
    DetailedFindings detailed(findings_, [this](Error& error) { add_details(error); });
    validate_catalog(catalog_, detailed, threads_);
    catalog_.root = nullptr;
  }

  void add_tensors(const Metadata& metadata) {
    catalog_.tensors.reserve(metadata.tensors.size());
    catalog_.chunks.reserve(metadata.chunks.size());
    catalog_.stored.reserve(metadata.chunks.size());
    for (const TensorEntry& entry : metadata.tensors) {
      CatalogMark mark(catalog_);
      try {
        add_tensor(catalog_, metadata, entry);
        mark.keep();
      } catch (Error& error) {
        if (!error.kind()) error.of_kind(FindingKind::kBadPickle);
        findings_.report(error.of_tensor(entry.name).in_file(catalog_.files.front().path));
      }
    }
  }

  FolderForm form_;
  const SourceStore& store_;
  std::string folder_;
  Findings& findings_;
  const int threads_;
  std::uint32_t metadata_files_ = 0;  // The number of metadata files, which are the catalog's first files.
  bool opaque_globals_ = false, is_of_ranks_ = false, is_rebuilt_ = false;
  Catalog catalog_ = source_catalog();
  ItemStore items_;
  RankCopies rank_copies_{catalog_, items_, findings_};
  ObjectItems objects_;
  CopyWarnings copies_;
  BytesOf bytes_of_ = [this](std::uint32_t storage) { return items_.bytes_of(storage); };
  std::vector<std::uint32_t> lost_items_;  // For rebuilt metadata: the items that were not found.
};

/// The error for one rank's file of a DCP checkpoint, whose folder is the checkpoint.
std::optional<Error> refuse_item_file(const SourceStore& store, const std::string& path) {
  const std::string folder = parent_path(path);
  const bool is_item_file = file_numbers(base_name(path)).rank >= 0;
  if (!is_item_file && base_name(path) != kMetadataName) return std::nullopt;
  if (!store.is_file(path)) return std::nullopt;
  return Error(ErrorCode::kInvalidArgument, "this is one file of a DCP checkpoint, which is read as a folder")
      .in_file(path)
      .expected("the folder with .metadata and all .distcp files")
      .suggest(Remedy::kReadFolder, folder);
}

}  // namespace

bool detect(const Source& source) {
  if (!is_one_folder(source)) return false;
  bool has_metadata = false;
  for (const std::string& name : source.store->list(source.paths[0])) {
    if (file_numbers(name).rank >= 0 || metadata_rank(name) >= 0) return true;
    has_metadata = has_metadata || name == kMetadataName;
  }
  if (!has_metadata) return false;
  const std::unique_ptr<RandomReader> file = source.store->open(join_path(source.paths[0], kMetadataName));
  std::byte first{};
  if (file->size() < 2) return false;
  file->read_at(0, {&first, 1});
  return first == std::byte{0x80};
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  if (source.paths.size() == 1 && !source.store->exists(source.paths[0])) {
    throw Error(ErrorCode::kNotFound, "no such folder").in_file(source.paths[0]).of_kind(FindingKind::kMissingFile);
  }
  if (!is_one_folder(source)) {
    throw Error(ErrorCode::kInvalidArgument, "a dcp checkpoint is one folder")
        .in_file(source.paths.front())
        .hint("pass the folder that contains .metadata");
  }
  return open_folder(*source.store, source.paths[0], options, {});
}

std::unique_ptr<Reader> open_folder(const SourceStore& store, const std::string& folder, const OpenOptions& options,
                                    const FolderForm& form) {
  return std::make_unique<DcpReader>(store, folder, options, form);
}

}  // namespace shard::dcp

const shard::Format shard::kDcpFormat{
    .traits = {.name = "dcp", .pieces = true, .single_box_items = true, .objects = true},
    .suffixes = {},
    .detect = dcp::detect,
    .open = dcp::open,
    .make_writer = dcp::make_writer,
    .refuse_part = dcp::refuse_item_file,
};
