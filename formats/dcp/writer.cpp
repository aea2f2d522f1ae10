#include "formats/dcp/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <deque>
#include <span>
#include <string_view>
#include <utility>

#include "formats/dcp/metadata.h"
#include "formats/torch/placed_zip.h"
#include "formats/torch/saved_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::dcp {

namespace {

// The zips around the elements of storages. Items of equal shape and dtype share a zip, except for CRCs.

/// The zip of one item.
class ItemZip {
 public:
  ItemZip(const StoredTensor& box, std::int64_t storage_bytes);
  /// True if the box's item has the same zip except for the CRCs.
  bool fits(const StoredTensor& box, std::int64_t storage_bytes) const {
    return dtype_ == box.dtype && shape_ == box.shape && strides_ == box.strides && first_ == box.first &&
           storage_bytes_ == storage_bytes;
  }
  std::int64_t total_bytes() const { return zip_.total_bytes(); }
  std::int64_t data_offset() const { return zip_.data_offset(0); }
  /// All bytes of the zip before the elements.
  const std::string& before() const { return before_; }
  /// Appends all bytes of the zip after the elements.
  void append_after(std::uint32_t crc, std::string& out) const;

 private:
  ItemZip(const StoredTensor& box, std::int64_t storage_bytes, const std::string& pickle);

  DType dtype_;
  Dims shape_, strides_;
  std::int64_t first_, storage_bytes_;
  torch_save::SavedZip zip_;
  std::uint32_t pickle_crc_;
  std::string before_;
};

/// Lays out the zips of items, and caches the last few. Threads: one.
class ItemZips {
 public:
  /// Valid until the next call.
  const ItemZip& zip_of(const Catalog& target, std::uint32_t stored);

 private:
  static constexpr std::size_t kMost = 64;
  std::deque<ItemZip> known_;
  std::size_t last_ = 0;
};

std::string pickle_of(const StoredTensor& box, std::int64_t storage_bytes) {
  torch_save::TensorView view;
  view.dtype = box.dtype;
  view.shape = box.shape;
  view.strides = box.strides;
  view.first = box.first;
  view.key = "0";
  view.location = "cpu";
  view.storage_bytes = storage_bytes;
  Value root;
  become_tensor(root, 0);
  return torch_save::dump(root, [&](std::int64_t) { return view; });
}

ItemZip::ItemZip(const StoredTensor& box, std::int64_t storage_bytes)
    : ItemZip(box, storage_bytes, pickle_of(box, storage_bytes)) {}

ItemZip::ItemZip(const StoredTensor& box, std::int64_t storage_bytes, const std::string& pickle)
    : dtype_(box.dtype),
      shape_(box.shape),
      strides_(box.strides),
      first_(box.first),
      storage_bytes_(storage_bytes),
      zip_("archive", std::ssize(pickle), std::span(&storage_bytes, 1)),
      pickle_crc_(crc32(std::as_bytes(std::span(pickle)))) {
  zip_.append_begin(before_);
  before_ += pickle;
  zip_.append_after_pickle(pickle_crc_, before_);
  zip_.append_before(0, before_);
}

void ItemZip::append_after(std::uint32_t crc, std::string& out) const {
  zip_.append_after(0, crc, out);
  zip_.write_end(
      pickle_crc_, [crc](std::size_t) { return crc; }, [&out](std::string_view piece) { out += piece; });
}

const ItemZip& ItemZips::zip_of(const Catalog& target, std::uint32_t stored) {
  const StoredTensor& box = target.stored[stored];
  const std::int64_t bytes = target.storages[box.storage].bytes;
  if (!known_.empty() && known_[last_].fits(box, bytes)) return known_[last_];
  const auto found = std::ranges::find_if(known_, [&](const ItemZip& zip) { return zip.fits(box, bytes); });
  last_ = static_cast<std::size_t>(found - known_.begin());
  if (found != known_.end()) return *found;
  if (known_.size() == kMost) known_.pop_front();
  last_ = known_.size();
  return known_.emplace_back(box, bytes);
}

using torch_save::SavedZip;

/// Each item is one box, so its zip without the elements is the frame of the box's storage.
class ItemFrames final : public StorageFrames {
 public:
  ItemFrames(const Catalog& target, const std::vector<std::uint32_t>& boxes) : target_(target), boxes_(boxes) {}
  void append_before(std::uint32_t storage, std::string& out) override {
    if (is_box(storage)) out += zip_of(storage).before();
  }
  void append_after(std::uint32_t storage, std::uint32_t crc, std::string& out) override {
    if (is_box(storage)) zip_of(storage).append_after(crc, out);
  }

 private:
  /// Other storages are whole items of objects.
  bool is_box(std::uint32_t storage) const { return storage < boxes_.size(); }
  const ItemZip& zip_of(std::uint32_t storage) { return zips_.zip_of(target_, boxes_[storage]); }

  const Catalog& target_;
  const std::vector<std::uint32_t>& boxes_;
  ItemZips zips_;
};

using ContentOf = std::function<FolderContent(Catalog& target)>;

class DcpWriter : public Writer {
 public:
  explicit DcpWriter(ContentOf content_of) : content_of_(std::move(content_of)) {}

  void place(Catalog& target) override {
    FolderContent content = content_of_(target);
    ready_ = std::move(content.ready);
    keep_objects(target, content.flat);
    list_leaves(target, std::move(content.flat));
    metadata_.has_paths = content.has_paths;
    beside_ = std::move(content.beside);
    place_objects();
    place_boxes(target);
    place_kept_boxes(target);
    assign_offsets(target);
    copy_originals(target);
    if (const auto note = target.metadata.find(kLostNote); note != target.metadata.end()) {
      metadata_.lost_note = note->second;
    }
    std::int64_t bytes = 0;
    dump_metadata(metadata_, [&bytes](std::string_view piece) { bytes += std::ssize(piece); });
    metadata_file_ = static_cast<std::uint32_t>(target.files.size());
    target.files.push_back({".metadata", bytes, -1});
    for (const FileBeside& file : beside_) target.files.push_back({file.name, std::ssize(file.content), -1});
  }

  bool needs_checksums() const override { return true; }
  bool is_folder() const override { return true; }

  void begin_file(const Catalog&, std::uint32_t file, FileWriter& to) override {
    if (file != 0) return;
    JoinedWrites writes(to);
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      if (const ReadyItem* ready = ready_.find(i)) {
        if (!ready->original) writes.add(metadata_.items[i].offset, ready->content);
        continue;
      }
      const std::string_view pickle = pickle_of(i);
      for (const SavedZip::Span& span : zip_of(pickle).frame(pickle, {})) {
        writes.add(metadata_.items[i].offset + span.offset, span.content);
      }
    }
    writes.flush();
  }

  std::unique_ptr<StorageFrames> frames(const Catalog& target) const override {
    return std::make_unique<ItemFrames>(target, boxes_);
  }

  void finish_file(const Catalog&, std::uint32_t file, const Checksums&, FileWriter& to) override {
    if (file < metadata_file_) return;
    JoinedWrites writes(to);
    if (file > metadata_file_) {
      writes.append(beside_[file - metadata_file_ - 1].content);
      return writes.flush();
    }
    dump_metadata(metadata_, [&writes](std::string_view piece) { writes.append(piece); });
    writes.flush();
  }

 private:
  /// Numbers the items here. They are written after the leaves are released, because there may be millions of both.
  void list_leaves(Catalog& target, Flat flat) {
    target.warnings.insert(target.warnings.end(), flat.warnings.begin(), flat.warnings.end());
    metadata_.objects = std::move(flat.objects);
    if (!metadata_.objects.empty()) open_first_file(target);
    pickle_objects(flat.values);
    number_boxes(target);
    list_tensors(target, flat.tensors);
  }

  /// Bytes items come first, all in the first file, so the number of an object's item is the object's own.
  void pickle_objects(std::span<const Value* const> values) {
    pickle_ends_.reserve(values.size());
    for (std::size_t i = 0; i < values.size(); ++i) {
      if (!ready_.contains(i))
        pickles_ += torch_save::dump(*values[i], [](std::int64_t) { return torch_save::TensorView{}; });
      pickle_ends_.push_back(pickles_.size());
    }
  }

  void place_objects() {
    metadata_.items.reserve(metadata_.objects.size() + metadata_.chunks.size());
    for (std::size_t i = 0; i < metadata_.objects.size(); ++i) {
      const ReadyItem* ready = ready_.find(i);
      const std::int64_t bytes = ready == nullptr  ? zip_of(pickle_of(i)).total_bytes()
                                 : ready->original ? ready->original->bytes
                                                   : std::ssize(ready->content);
      metadata_.items.push_back({0, bytes, 0});
    }
  }

  void copy_originals(Catalog& target) const {
    for (const auto& [object, ready] : ready_.entries()) {
      if (ready.original) copy_item(target, metadata_.items[object], ready.original->storage);
    }
    for (const auto& [item, storage] : kept_boxes_) copy_item(target, metadata_.items[item], storage);
  }

  static void copy_item(Catalog& target, const Item& item, std::uint32_t from) {
    const auto storage = static_cast<std::uint32_t>(target.storages.size());
    target.storages.push_back({.offset = item.offset, .bytes = item.length, .file = item.file, .whole_copy = true});
    target.storage_copies.push_back({from, storage, 0, 0, item.length});
  }

  // --- Items that exist only in the source and are copied unchanged, see Originals::Kept.

  void keep_objects(const Catalog& target, Flat& flat) {
    if (target.originals == nullptr) return;
    for (const Originals::Kept& kept : target.originals->kept) {
      if (!kept.is_object) continue;
      ready_[flat.objects.size()].original = kept.items.front().item;
      flat.objects.push_back({kept.name, kept.path, static_cast<std::uint32_t>(flat.objects.size())});
      flat.values.push_back(nullptr);
    }
  }

  void place_kept_boxes(Catalog& target) {
    if (target.originals == nullptr) return;
    for (const Originals::Kept& kept : target.originals->kept) {
      if (kept.is_object) continue;
      TensorEntry entry{kept.name, kept.path, kept.shape, kept.dtype, kept.requires_grad};
      entry.first_chunk = static_cast<std::uint32_t>(metadata_.chunks.size());
      entry.chunk_count = static_cast<std::uint32_t>(kept.items.size());
      for (const Originals::KeptItem& each : kept.items) {
        const auto item = static_cast<std::uint32_t>(metadata_.items.size());
        metadata_.items.push_back({0, each.item.bytes, file_of_rank(target, each.rank)});
        metadata_.chunks.push_back({each.offsets, each.sizes, item});
        kept_boxes_.emplace_back(item, each.item.storage);
      }
      metadata_.tensors.push_back(entry);
    }
  }

  /// The index of that rank's file, which is added if it is missing. Files without ranks count as rank 0's.
  static std::uint32_t file_of_rank(Catalog& target, int rank) {
    const auto has_it = [rank](const File& file) { return file.rank < 0 || file.rank == rank; };
    const auto found = std::ranges::find_if(target.files, has_it);
    const auto index = static_cast<std::uint32_t>(found - target.files.begin());
    if (found == target.files.end()) target.files.push_back({"", 0, rank});
    return index;
  }

  std::string_view pickle_of(std::size_t object) const {
    const std::size_t begin = object == 0 ? 0 : pickle_ends_[object - 1];
    return std::string_view(pickles_).substr(begin, pickle_ends_[object] - begin);
  }

  static SavedZip zip_of(std::string_view pickle) { return SavedZip("archive", std::ssize(pickle), {}); }

  /// Rank 0 stores the objects, even if it has no box.
  static void open_first_file(Catalog& target) {
    if (!target.files.empty() && target.files.front().rank <= 0) return;
    target.files.insert(target.files.begin(), File{"", 0, 0});
    for (Storage& storage : target.storages) ++storage.file;
  }

  /// The items of boxes follow those of objects, in the order of place_boxes.
  void number_boxes(const Catalog& target) {
    item_of_.assign(target.stored.size(), kNoIndex);
    auto item = static_cast<std::uint32_t>(metadata_.objects.size());
    for (const Tensor& tensor : target.tensors) {
      for (const Chunk& chunk : target.chunks_of(tensor)) item_of_[chunk.stored] = item++;
    }
  }

  /// Gives the storages their offsets in their items.
  void place_boxes(Catalog& target) {
    boxes_.assign(target.storages.size(), kNoIndex);
    ItemZips zips;
    for (const Tensor& tensor : target.tensors) {
      torch_save::check_dtype(tensor);
      for (const Chunk& chunk : target.chunks_of(tensor)) {
        const std::uint32_t index = target.stored[chunk.stored].storage;
        Storage& storage = target.storages[index];
        const ItemZip& zip = zips.zip_of(target, chunk.stored);
        storage.offset = zip.data_offset();
        boxes_[index] = chunk.stored;
        metadata_.items.push_back({0, zip.total_bytes(), storage.file});
      }
    }
  }

  void list_tensors(const Catalog& target, std::span<const TensorLeaf> leaves) {
    metadata_.tensors.reserve(leaves.size());
    metadata_.chunks.reserve(target.chunks.size());
    for (const TensorLeaf& leaf : leaves) {
      const Tensor& tensor = target.tensors[leaf.tensor];
      TensorEntry entry{leaf.name, leaf.path, tensor.shape, tensor.dtype, false, 0, tensor.chunk_count};
      entry.first_chunk = static_cast<std::uint32_t>(metadata_.chunks.size());
      for (const Chunk& chunk : target.chunks_of(tensor)) {
        entry.requires_grad = entry.requires_grad || target.stored[chunk.stored].requires_grad;
        metadata_.chunks.push_back({chunk.offsets, chunk.sizes, item_of_[chunk.stored]});
      }
      metadata_.tensors.push_back(entry);
    }
  }

  /// Places each item after the ones before it in its file. Files without content are dropped.
  void assign_offsets(Catalog& target) {
    std::vector<std::int64_t> bytes(target.files.size(), 0);
    for (Item& item : metadata_.items) {
      item.offset = bytes[item.file];
      bytes[item.file] = checked_add(item.offset, item.length);
    }
    std::vector<File> files;
    std::vector<std::uint32_t> numbers(target.files.size(), kNoIndex);
    for (std::uint32_t i = 0; i < numbers.size(); ++i) {
      if (bytes[i] == 0) continue;
      numbers[i] = static_cast<std::uint32_t>(files.size());
      File& file = files.emplace_back(target.files[i]);
      if (file.rank < 0) file.rank = static_cast<int>(i);
      file.path = fmt::format("__{}_0.distcp", file.rank);
      file.bytes = bytes[i];
      metadata_.files.push_back(file.path);
    }
    for (Item& item : metadata_.items) item.file = numbers[item.file];
    for (std::uint32_t i = 0; i < boxes_.size(); ++i) {
      if (boxes_[i] == kNoIndex) continue;
      const Item& item = metadata_.items[item_of_[boxes_[i]]];
      target.storages[i].file = item.file;
      target.storages[i].offset += item.offset;
    }
    target.files = std::move(files);
  }

  ContentOf content_of_;
  std::vector<FileBeside> beside_;
  HashMap<std::size_t, ReadyItem> ready_;
  std::uint32_t metadata_file_ = 0;
  std::string pickles_;                   // The encoded objects, one after the other.
  std::vector<std::size_t> pickle_ends_;  // The end of each object in pickles_.
  std::vector<std::uint32_t> boxes_;      // Storage -> its stored tensor.
  std::vector<std::uint32_t> item_of_;    // Stored tensor -> its number in the metadata's items.
  /// Boxes of kept tensors: their number in the metadata's items, and the source's storage.
  std::vector<std::pair<std::uint32_t, std::uint32_t>> kept_boxes_;
  Metadata metadata_;
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions&) {
  return make_folder_writer([](Catalog& target) { return FolderContent{.flat = flatten(target)}; });
}

std::unique_ptr<Writer> make_folder_writer(ContentOf content_of) {
  return std::make_unique<DcpWriter>(std::move(content_of));
}

}  // namespace shard::dcp
