#include "formats/dcp/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <vector>

#include "formats/dcp/flatten.h"
#include "formats/dcp/item_zips.h"
#include "formats/dcp/metadata.h"
#include "formats/torch/saved_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/joined_writes.h"

namespace shard::dcp {
namespace {

using torch_save::SavedZip;

/// An item of a target file: a bytes item, or the box of a tensor.
struct PlacedItem {
  Item item;
  std::uint32_t stored = kNoIndex;  ///< The box, in the target catalog; kNoIndex for a bytes item.
  std::uint32_t object = 0;         ///< Index into DcpWriter::objects_.
  std::int64_t data_offset = 0;     ///< Where the box's elements begin, from the item's begin.
};

/// A bytes item: a value's pickle in a zip, all known before a byte is written.
struct PlacedObject {
  std::string pickle;
  std::int64_t offset = 0;  ///< In the first file.
  SavedZip zip() const { return SavedZip("archive", std::ssize(pickle), {}); }
};

/// An item is one box, so all of its zip but the elements is the frame of the box's storage.
class ItemFrames final : public StorageFrames {
 public:
  ItemFrames(const Catalog& target, const std::vector<std::uint32_t>& boxes) : target_(target), boxes_(boxes) {}
  void append_before(std::uint32_t storage, std::string& out) override { out += zip_of(storage).before(); }
  void append_after(std::uint32_t storage, std::uint32_t crc, std::string& out) override {
    zip_of(storage).append_after(crc, out);
  }

 private:
  const ItemZip& zip_of(std::uint32_t storage) { return zips_.zip_of(target_, boxes_[storage]); }

  const Catalog& target_;
  const std::vector<std::uint32_t>& boxes_;
  ItemZips zips_;
};

class DcpWriter : public Writer {
 public:
  void place(Catalog& target) override {
    Flat flat = flatten(target);
    target.warnings.insert(target.warnings.end(), flat.warnings.begin(), flat.warnings.end());
    open_first_file(target, flat);
    std::vector<PlacedItem> placed;
    place_objects(flat, placed);
    place_boxes(target, placed);
    list_tensors(target, flat);
    settle_files(target, placed);
    if (const auto note = target.metadata.find(kLostNote); note != target.metadata.end()) {
      metadata_.lost_note = note->second;
    }
    std::int64_t bytes = 0;
    dump_metadata(metadata_, [&bytes](std::string_view piece) { bytes += std::ssize(piece); });
    target.files.push_back({".metadata", bytes, -1});
  }

  bool needs_checksums() const override { return true; }
  bool is_folder() const override { return true; }

  void begin_file(const Catalog&, std::uint32_t file, FileWriter& to) override {
    if (file != 0) return;
    JoinedWrites writes(to);
    for (const PlacedObject& object : objects_) {
      for (const SavedZip::Span& span : object.zip().frame(object.pickle, {})) {
        writes.add(object.offset + span.offset, span.content);
      }
    }
    writes.flush();
  }

  std::unique_ptr<StorageFrames> frames(const Catalog& target) const override {
    return std::make_unique<ItemFrames>(target, boxes_);
  }

  void finish_file(const Catalog& target, std::uint32_t file, const Checksums&, FileWriter& to) override {
    if (file + 1 != target.files.size()) return;
    JoinedWrites writes(to);
    dump_metadata(metadata_, [&writes](std::string_view piece) { writes.append(piece); });
    writes.flush();
  }

 private:
  /// Bytes items come first, all in the first file.
  void place_objects(const Flat& flat, std::vector<PlacedItem>& placed) {
    const auto count = static_cast<std::size_t>(
        std::ranges::count_if(flat.leaves, [](const Leaf& leaf) { return leaf.tensor == kNoIndex; }));
    objects_.reserve(count);
    metadata_.objects.reserve(count);
    placed.reserve(flat.leaves.size());
    for (const Leaf& leaf : flat.leaves) {
      if (leaf.tensor != kNoIndex) continue;
      const std::uint32_t index = static_cast<std::uint32_t>(objects_.size());
      objects_.push_back({torch_save::dump(*leaf.value, [](std::int64_t) { return torch_save::TensorView{}; })});
      metadata_.objects.push_back({leaf.name, leaf.path, index});
      placed.push_back({Item{0, objects_.back().zip().total_bytes(), 0}, kNoIndex, index, 0});
    }
  }

  /// Objects lie with rank 0, which may hold no box.
  static void open_first_file(Catalog& target, const Flat& flat) {
    const auto is_object = [](const Leaf& leaf) { return leaf.tensor == kNoIndex; };
    if (std::none_of(flat.leaves.begin(), flat.leaves.end(), is_object)) return;
    if (!target.files.empty() && target.files.front().rank <= 0) return;
    target.files.insert(target.files.begin(), File{"", 0, 0});
    for (Storage& storage : target.storages) ++storage.file;
  }

  void place_boxes(const Catalog& target, std::vector<PlacedItem>& placed) {
    item_of_.assign(target.stored.size(), kNoIndex);
    boxes_.assign(target.storages.size(), kNoIndex);
    ItemZips zips;
    for (const Tensor& tensor : target.tensors) {
      check_dtype(tensor);
      for (const Chunk& chunk : target.chunks_of(tensor)) {
        const std::uint32_t storage = target.stored[chunk.stored].storage;
        const ItemZip& zip = zips.zip_of(target, chunk.stored);
        boxes_[storage] = chunk.stored;
        item_of_[chunk.stored] = static_cast<std::uint32_t>(placed.size());
        placed.push_back(
            {Item{0, zip.total_bytes(), target.storages[storage].file}, chunk.stored, 0, zip.data_offset()});
      }
    }
  }

  void list_tensors(const Catalog& target, const Flat& flat) {
    for (const Leaf& leaf : flat.leaves) {
      if (leaf.tensor == kNoIndex) continue;
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

  static void check_dtype(const Tensor& tensor) {
    if (tensor.dtype != DType::kFloat6E2m3fn && tensor.dtype != DType::kFloat6E3m2fn) return;
    throw Error(ErrorCode::kUnsupported, fmt::format("tensor '{}' is {}, a dtype that torch does not have", tensor.name,
                                                     dtype_name(tensor.dtype)))
        .of_tensor(tensor.name)
        .suggest(Remedy::kExclude, tensor.name);
  }

  /// Orders items by file, gives each its offset, and keeps the files that hold something.
  void settle_files(Catalog& target, const std::vector<PlacedItem>& placed) {
    std::vector<std::uint32_t> order(placed.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return placed[a].item.file < placed[b].item.file; });
    std::vector<File> files;
    metadata_.items.resize(placed.size());
    std::uint32_t last = kNoIndex;
    for (const std::uint32_t i : order) {
      PlacedItem one = placed[i];
      if (one.item.file != last) {
        last = one.item.file;
        files.push_back(target.files[last]);
        if (files.back().rank < 0) files.back().rank = static_cast<int>(last);
        files.back().path = fmt::format("__{}_0.distcp", files.back().rank);
        files.back().bytes = 0;
      }
      one.item.file = static_cast<std::uint32_t>(files.size()) - 1;
      one.item.offset = files.back().bytes;
      files.back().bytes = checked_add(files.back().bytes, one.item.length);
      metadata_.items[i] = one.item;
      if (one.stored != kNoIndex) {
        Storage& storage = target.storages[target.stored[one.stored].storage];
        storage.file = one.item.file;
        storage.offset = one.item.offset + one.data_offset;
      } else {
        objects_[one.object].offset = one.item.offset;
      }
    }
    for (const File& file : files) metadata_.files.push_back(file.path);
    target.files = std::move(files);
  }

  std::vector<PlacedObject> objects_;
  std::vector<std::uint32_t> boxes_;    // Storage -> its stored tensor.
  std::vector<std::uint32_t> item_of_;  // Stored tensor -> its number in the metadata's items.
  Metadata metadata_;
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  if (options.single_file) {
    throw Error(ErrorCode::kInvalidArgument, "cannot write dcp as one file: it is a folder")
        .suggest(Remedy::kNameFolder);
  }
  return std::make_unique<DcpWriter>();
}

}  // namespace shard::dcp
