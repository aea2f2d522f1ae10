#include "formats/dcp/reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <tuple>
#include <unordered_set>

#include "formats/dcp/item.h"
#include "formats/dcp/metadata.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/open_files.h"

namespace shard::dcp {
namespace {

constexpr std::string_view kMetadataName = ".metadata";
constexpr std::int64_t kMetadataLimit = std::int64_t{1} << 34;

// `__R.metadata`, which torch writes for each rank with use_collectives=False.
bool is_rank_metadata(std::string_view name) {
  if (!name.starts_with("__") || !name.ends_with(kMetadataName)) return false;
  const std::string_view digits = name.substr(2, name.size() - 2 - kMetadataName.size());
  return !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos;
}

// `.metadata` comes first in the catalog's files, the others follow by rank and number.
std::vector<std::uint32_t> file_order(const std::vector<std::string>& names) {
  std::vector<std::uint32_t> order(names.size());
  std::iota(order.begin(), order.end(), 0U);
  std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) {
    const FileNumbers x = file_numbers(names[a]), y = file_numbers(names[b]);
    return std::tie(x.rank, x.number, names[a]) < std::tie(y.rank, y.number, names[b]);
  });
  return order;
}

class DcpReader : public Reader {
 public:
  DcpReader(FileSystem& fs, const std::string& folder, Findings& findings)
      : fs_(fs), folder_(folder), findings_(findings) {
    const std::string path = join_path(folder, kMetadataName);
    const std::unique_ptr<RandomReader> file = fs.open(path);
    const std::vector<std::byte> bytes = read_whole(*file, kMetadataLimit);
    Metadata metadata = parse_metadata(*catalog_.arena, bytes, std::string(kMetadataName));
    catalog_.format = "dcp";
    catalog_.format_version = metadata.maker;
    catalog_.warnings = std::move(metadata.warnings);
    catalog_.files.push_back({std::string(kMetadataName), file->size(), -1});
    add_files(metadata);
    check_items(metadata);
    try {
      add_tensors(metadata);
      objects_ = std::move(metadata.objects);
      for (const ObjectEntry& object : objects_) catalog_.objects.push_back({object.name, object.path, nullptr, -1});
      finish_catalog(catalog_);
    } catch (Error& error) {
      error.in_file(kMetadataName);
      throw;
    }
  }

  const Catalog& catalog() const override { return catalog_; }

  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_.get(index); }

  void locate(std::span<const std::uint32_t> tensors) override {
    std::vector<Wanted> wanted;
    for (const std::uint32_t t : tensors) {
      const Tensor& tensor = catalog_.tensors[t];
      for (std::uint32_t c = tensor.first_chunk; c < tensor.first_chunk + tensor.chunk_count; ++c) {
        const std::uint32_t storage = catalog_.stored[catalog_.chunks[c].stored].storage;
        if (catalog_.storages[storage].offset < 0) wanted.push_back({items_[storage], t, c});
      }
    }
    for_each_item(wanted,
                  [this](const std::shared_ptr<FetchedFile>& file, const Wanted& one) { locate_one(file, one); });
  }

  void load_objects() override {
    if (objects_loaded_ || objects_.empty()) return;
    std::vector<Wanted> wanted;
    for (std::uint32_t i = 0; i < objects_.size(); ++i) wanted.push_back({items_[objects_[i].item], i, 0});
    std::vector<Value*> values(objects_.size());
    for_each_item(wanted, [&](const std::shared_ptr<FetchedFile>& file, const Wanted& one) {
      try {
        values[one.entry] = load_object(*catalog_.arena, file, one.item);
      } catch (Error& error) {
        error.of_tensor(objects_[one.entry].name).in_file(file->name());
        throw;
      }
    });
    list_objects(values);
    objects_loaded_ = true;
  }

 private:
  // An item to be looked into, for a tensor's chunk or for an object.
  struct Wanted {
    Item item;
    std::uint32_t entry;  // Of catalog_.tensors or objects_.
    std::uint32_t chunk;
  };

  // Replaces the metadata's file numbers by the catalog's and looks at each file's size.
  void add_files(Metadata& metadata) {
    const std::vector<std::uint32_t> order = file_order(metadata.files);
    std::vector<std::uint32_t> place(order.size());
    std::unordered_set<std::string> named;
    int last_rank = -1;
    for (const std::uint32_t old : order) {
      place[old] = static_cast<std::uint32_t>(catalog_.files.size());
      const std::string& name = metadata.files[old];
      const int rank = file_numbers(name).rank;
      last_rank = std::max(last_rank, rank);
      const FileStatus status = fs_.status(join_path(folder_, name));
      if (status.kind != FileKind::kFile) report_missing(metadata, old);
      catalog_.files.push_back({name, status.bytes, rank});
      named.insert(name);
    }
    if (last_rank >= 0) catalog_.world_size = last_rank + std::int64_t{1};
    for (Item& item : metadata.items) item.file = place[item.file];
    for (const std::string& name : fs_.list(folder_)) {
      if (name.ends_with(".distcp") && !named.contains(name)) {
        catalog_.warnings.push_back(fmt::format("{}: no item of .metadata lies in it", name));
      }
    }
  }

  void report_missing(const Metadata& metadata, std::uint32_t file) {
    const auto items = std::count_if(metadata.items.begin(), metadata.items.end(),
                                     [&](const Item& item) { return item.file == file; });
    const std::string& name = metadata.files[file];
    Error error(ErrorCode::kNotFound, fmt::format("{} is missing; {} {} in it", name, items,
                                                  items == 1 ? "chunk or object lies" : "chunks and objects lie"));
    error.in_file(name).because(".metadata names it").hint("fetch it again").of_kind("missing_file");
    if (const int rank = file_numbers(name).rank; rank >= 0) error.of_rank(rank);
    findings_.report(error);
  }

  // Sets lengths that the metadata leaves out (to the next item or the end) and checks all against the files' sizes.
  void check_items(Metadata& metadata) {
    std::vector<std::uint32_t> order(metadata.items.size());
    std::iota(order.begin(), order.end(), 0U);
    const auto key = [&](std::uint32_t i) { return std::pair(metadata.items[i].file, metadata.items[i].offset); };
    const auto unknown = [](const Item& item) { return item.length < 0; };
    if (std::any_of(metadata.items.begin(), metadata.items.end(), unknown)) {
      std::sort(order.begin(), order.end(), [&](std::uint32_t a, std::uint32_t b) { return key(a) < key(b); });
    }
    for (std::size_t i = 0; i < order.size(); ++i) {
      Item& item = metadata.items[order[i]];
      const File& file = catalog_.files[item.file];
      const bool last = i + 1 == order.size() || metadata.items[order[i + 1]].file != item.file;
      if (item.length < 0) item.length = (last ? file.bytes : metadata.items[order[i + 1]].offset) - item.offset;
      if (item.length >= 0 && checked_add(item.offset, item.length) <= file.bytes) continue;
      findings_.report(Error(ErrorCode::kCorruption,
                             fmt::format("an item lies at [{}, {}), but {} has {} bytes", item.offset,
                                         item.offset + std::max<std::int64_t>(item.length, 0), file.path, file.bytes))
                           .in_file(file.path)
                           .expected(item.offset + std::max<std::int64_t>(item.length, 0))
                           .found(file.bytes)
                           .because("the file was cut short")
                           .hint("fetch it again")
                           .of_kind("truncated"));
    }
    items_ = std::move(metadata.items);
  }

  void add_tensors(const Metadata& metadata) {
    catalog_.storages.resize(items_.size());
    for (std::size_t i = 0; i < items_.size(); ++i) catalog_.storages[i].file = items_[i].file;
    catalog_.tensors.reserve(metadata.tensors.size());
    catalog_.chunks.reserve(metadata.chunks.size());
    catalog_.stored.reserve(metadata.chunks.size());
    for (const TensorEntry& entry : metadata.tensors) {
      try {
        add_tensor(metadata, entry);
      } catch (Error& error) {
        error.of_tensor(entry.name);
        throw;
      }
    }
  }

  // Until an item is located its tensor is taken for row-major and alone in its storage.
  void add_tensor(const Metadata& metadata, const TensorEntry& entry) {
    Tensor tensor;
    tensor.name = entry.name;
    tensor.path = entry.path;
    tensor.shape = entry.size;
    tensor.dtype = entry.dtype;
    tensor.first_chunk = static_cast<std::uint32_t>(catalog_.chunks.size());
    tensor.chunk_count = entry.chunk_count;
    for (std::uint32_t i = 0; i < entry.chunk_count; ++i) {
      const ChunkEntry& chunk = metadata.chunks[entry.first_chunk + i];
      Storage& storage = catalog_.storages[chunk.item];
      storage.bytes = checked_bytes(checked_numel(chunk.sizes.span()), entry.dtype);
      StoredTensor stored;
      stored.shape = chunk.sizes;
      stored.strides = strides_of(chunk.sizes);
      stored.storage = chunk.item;
      stored.rank = catalog_.files[storage.file].rank;
      stored.dtype = entry.dtype;
      stored.requires_grad = entry.requires_grad;
      catalog_.chunks.push_back(
          {chunk.offsets, chunk.sizes, stored.strides, 0, static_cast<std::uint32_t>(catalog_.stored.size())});
      catalog_.stored.push_back(stored);
    }
    catalog_.tensors.push_back(tensor);
  }

  Dims strides_of(Dims sizes) {
    std::int64_t strides[kMaxDims];
    const std::span<std::int64_t> used(strides, static_cast<std::size_t>(sizes.size()));
    row_major_strides(sizes.span(), used);
    return catalog_.arena->dims(used);
  }

  // Calls `use` for each item in the order in which they lie, with its file, fronts and ends already in memory.
  template <class Use>
  void for_each_item(std::vector<Wanted>& wanted, const Use& use) {
    std::sort(wanted.begin(), wanted.end(), [](const Wanted& a, const Wanted& b) {
      return std::tie(a.item.file, a.item.offset) < std::tie(b.item.file, b.item.offset);
    });
    std::vector<Item> items(wanted.size());
    std::transform(wanted.begin(), wanted.end(), items.begin(), [](const Wanted& one) { return one.item; });
    std::shared_ptr<FetchedFile> file;
    for (std::size_t i = 0; i < wanted.size();) {
      const std::uint32_t index = wanted[i].item.file;
      if (i == 0 || wanted[i - 1].item.file != index) file = std::make_shared<FetchedFile>(this->file(index));
      std::size_t end = i;
      while (end < wanted.size() && wanted[end].item.file == index && end - i < kBatch) ++end;
      const std::size_t taken = file->fetch(std::span(items).subspan(i, end - i));
      for (end = i + taken; i < end; ++i) use(file, wanted[i]);
    }
  }

  void locate_one(const std::shared_ptr<FetchedFile>& file, const Wanted& one) {
    const Tensor& tensor = catalog_.tensors[one.entry];
    Chunk& chunk = catalog_.chunks[one.chunk];
    StoredTensor& stored = catalog_.stored[chunk.stored];
    try {
      const ItemTensor found = opener_.open(file, one.item);
      check_item(tensor, chunk, found);
      Storage& storage = catalog_.storages[stored.storage];
      storage.offset = found.data_begin;
      storage.bytes = found.data_bytes;
      stored.strides = chunk.strides = found.strides;
      stored.first = chunk.first = found.first;
    } catch (Error& error) {
      error.of_tensor(tensor.name).in_file(catalog_.files[one.item.file].path);
      throw;
    }
  }

  static void check_item(const Tensor& tensor, const Chunk& chunk, const ItemTensor& found) {
    if (found.dtype != tensor.dtype) {
      throw Error(ErrorCode::kCorruption, fmt::format("tensor '{}': its item at {} has another dtype than .metadata",
                                                      tensor.name, to_string(chunk.offsets.span())))
          .expected(dtype_name(tensor.dtype))
          .found(dtype_name(found.dtype))
          .of_kind("dtype_mismatch");
    }
    if (found.shape != chunk.sizes) {
      throw Error(ErrorCode::kCorruption, fmt::format("tensor '{}': its item at {} has another shape than .metadata",
                                                      tensor.name, to_string(chunk.offsets.span())))
          .expected(to_string(chunk.sizes.span()))
          .found(to_string(found.shape.span()))
          .of_kind("shape_mismatch");
    }
  }

  // Puts the objects' leaves in the place of the objects, and everything into a tree that keeps tuples and the like.
  void list_objects(const std::vector<Value*>& values) {
    std::vector<TreeEntry> entries;
    entries.reserve(catalog_.tensors.size() + objects_.size());
    for (std::uint32_t i = 0; i < catalog_.tensors.size(); ++i) {
      entries.push_back({catalog_.tensors[i].name, catalog_.tensors[i].path, i, nullptr});
    }
    catalog_.objects.clear();
    for (std::size_t i = 0; i < objects_.size(); ++i) {
      entries.push_back({objects_[i].name, objects_[i].path, kNoIndex, values[i]});
      visit_leaves(
          *catalog_.arena, *values[i], [](const Value&) { return false; },
          [&](const TreeLeaf& leaf) { list_leaf(objects_[i], leaf); });
    }
    std::stable_sort(catalog_.objects.begin(), catalog_.objects.end(),
                     [](const Object& a, const Object& b) { return a.name < b.name; });
    catalog_.root = tree_of_paths(*catalog_.arena, entries);
  }

  void list_leaf(const ObjectEntry& object, const TreeLeaf& leaf) {
    if (leaf.path.empty()) {
      catalog_.objects.push_back({object.name, object.path, leaf.value, -1});
      return;
    }
    const PathPart key{object.name, 0, false};
    const Path front = object.path.empty() ? Path(&key, 1) : object.path;
    const std::span<PathPart> path = catalog_.arena->array<PathPart>(front.size() + leaf.path.size());
    std::copy(leaf.path.begin(), leaf.path.end(), std::copy(front.begin(), front.end(), path.begin()));
    const std::string_view name = catalog_.arena->copy(fmt::format("{}.{}", object.name, leaf.name));
    catalog_.objects.push_back({name, path, leaf.value, -1});
  }

  static constexpr std::size_t kBatch = 8192;

  FileSystem& fs_;
  std::string folder_;
  Findings& findings_;
  Catalog catalog_;
  mutable OpenFiles files_{[this](std::uint32_t index) { return fs_.open_below(folder_, catalog_.files[index].path); }};
  std::vector<Item> items_;  // Of each storage, and of objects.
  std::vector<ObjectEntry> objects_;
  bool objects_loaded_ = false;
  ItemOpener opener_{*catalog_.arena};
};

}  // namespace

bool detect(const Source& source) {
  if (source.paths.size() != 1 || source.fs->status(source.paths[0]).kind != FileKind::kFolder) return false;
  bool has_metadata = false, has_items = false, has_rank_metadata = false;
  for (const std::string& name : source.fs->list(source.paths[0])) {
    has_metadata = has_metadata || name == kMetadataName;
    has_items = has_items || file_numbers(name).rank >= 0;
    has_rank_metadata = has_rank_metadata || is_rank_metadata(name);
  }
  if (has_items) return true;
  if (has_rank_metadata) return true;
  if (!has_metadata) return false;
  const std::unique_ptr<RandomReader> file = source.fs->open(join_path(source.paths[0], kMetadataName));
  std::byte first{};
  if (file->size() < 2) return false;
  file->read_at(0, {&first, 1});
  return first == std::byte{0x80};
}

std::unique_ptr<Reader> open(const Source& source, const OpenOptions& options) {
  if (source.paths.size() == 1 && source.fs->status(source.paths[0]).kind == FileKind::kAbsent) {
    throw Error(ErrorCode::kNotFound, "no such folder").in_file(source.paths[0]).of_kind("missing_file");
  }
  if (source.paths.size() != 1 || source.fs->status(source.paths[0]).kind != FileKind::kFolder) {
    throw Error(ErrorCode::kInvalidArgument, "a dcp checkpoint is one folder")
        .hint("name the folder that holds .metadata");
  }
  const std::string& folder = source.paths[0];
  if (source.fs->status(join_path(folder, kMetadataName)).kind == FileKind::kAbsent) {
    const std::vector<std::string> names = source.fs->list(folder);
    if (std::any_of(names.begin(), names.end(), is_rank_metadata)) {
      throw Error(ErrorCode::kUnsupported,
                  "the checkpoint was saved with use_collectives=False: each rank has its own "
                  "metadata, and nothing says how they belong together")
          .in_file(folder)
          .hint("save it again with use_collectives=True");
    }
    throw Error(ErrorCode::kNotFound, ".metadata is missing")
        .in_file(join_path(folder, kMetadataName))
        .because("a save that did not finish leaves none")
        .of_kind("missing_file");
  }
  return std::make_unique<DcpReader>(*source.fs, folder, *options.findings);
}

}  // namespace shard::dcp
