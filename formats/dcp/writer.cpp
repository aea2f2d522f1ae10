#include "formats/dcp/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/dcp/flatten.h"
#include "formats/dcp/metadata.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::dcp {
namespace {

using torch_save::SavedZip;

/// An item of a target file: a bytes item, or the box of a tensor.
struct PlacedItem {
  Item item;
  std::uint32_t stored = kNoIndex;  ///< Of the target catalog; kNoIndex for a bytes item.
  std::uint32_t object = 0;         ///< Of DcpWriter::pickles_.
  std::int64_t data_offset = 0;     ///< Of the box's elements, from the item's begin.
};

/// Joins what lies side by side in a file to long writes.
class JoinedWrites {
 public:
  explicit JoinedWrites(FileWriter& file) : file_(file) {}
  void add(std::int64_t offset, std::string_view bytes) {
    if (offset != begin_ + static_cast<std::int64_t>(buffer_.size()) || buffer_.size() >= kLimit) {
      flush();
      begin_ = offset;
    }
    buffer_ += bytes;
  }
  void flush() {
    if (!buffer_.empty()) file_.write_at(begin_, std::as_bytes(std::span(buffer_)));
    buffer_.clear();
  }

 private:
  static constexpr std::size_t kLimit = 1 << 18;
  FileWriter& file_;
  std::int64_t begin_ = 0;
  std::string buffer_;
};

class DcpWriter : public Writer {
 public:
  void place(Catalog& target) override {
    Flat flat = flatten(target);
    target.warnings.insert(target.warnings.end(), flat.warnings.begin(), flat.warnings.end());
    Metadata metadata;
    open_first_file(target, flat);
    place_objects(flat, metadata);
    place_boxes(target);
    list_tensors(target, flat, metadata);
    settle_files(target, metadata);
    metadata_ = dump_metadata(metadata);
    target.files.push_back({".metadata", static_cast<std::int64_t>(metadata_.size()), -1});
  }

  bool needs_checksums() const override { return true; }
  bool is_folder() const override { return true; }

  void finish(const Catalog& target, const Checksums& checksums, std::span<FileWriter* const> files) override {
    for (std::size_t i = 0; i < placed_.size();) {
      const std::uint32_t file = placed_[i].item.file;
      JoinedWrites writes(*files[file]);
      for (; i < placed_.size() && placed_[i].item.file == file; ++i)
        write_frame(target, checksums, placed_[i], writes);
      writes.flush();
    }
    JoinedWrites writes(*files[target.files.size() - 1]);
    writes.add(0, metadata_);
    writes.flush();
  }

 private:
  /// Bytes items come first, all in the first file.
  void place_objects(const Flat& flat, Metadata& metadata) {
    for (const Leaf& leaf : flat.leaves) {
      if (leaf.tensor != kNoIndex) continue;
      const std::uint32_t index = static_cast<std::uint32_t>(pickles_.size());
      pickles_.push_back(torch_save::dump(*leaf.value, [](std::int64_t) { return torch_save::TensorView{}; }));
      const SavedZip zip("archive", pickles_.back(), {});
      metadata.objects.push_back({leaf.name, leaf.path, index});
      placed_.push_back({Item{0, zip.total_bytes(), 0}, kNoIndex, index, 0});
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

  void place_boxes(const Catalog& target) {
    item_of_.assign(target.stored.size(), kNoIndex);
    std::uint32_t last = kNoIndex;
    for (const Tensor& tensor : target.tensors) {
      check_dtype(tensor);
      for (const Chunk& chunk : target.chunks_of(tensor)) {
        const std::uint32_t file = target.storages[target.stored[chunk.stored].storage].file;
        PlacedItem one{Item{0, 0, file}, chunk.stored, 0, 0};
        if (last != kNoIndex && have_equal_zips(target, last, chunk.stored)) {
          one.item.length = placed_.back().item.length;
          one.data_offset = placed_.back().data_offset;
        } else {
          const SavedZip zip = item_zip(target, chunk.stored);
          one.item.length = zip.total_bytes();
          one.data_offset = zip.data_offset(0);
        }
        last = chunk.stored;
        item_of_[chunk.stored] = static_cast<std::uint32_t>(placed_.size());
        placed_.push_back(one);
      }
    }
  }

  /// Whether two boxes' zips are laid out alike, for all that is known without making them.
  static bool have_equal_zips(const Catalog& target, std::uint32_t a, std::uint32_t b) {
    const StoredTensor &x = target.stored[a], &y = target.stored[b];
    return x.dtype == y.dtype && x.shape == y.shape && x.strides == y.strides && x.first == y.first &&
           target.storages[x.storage].bytes == target.storages[y.storage].bytes;
  }

  void list_tensors(const Catalog& target, const Flat& flat, Metadata& metadata) const {
    for (const Leaf& leaf : flat.leaves) {
      if (leaf.tensor == kNoIndex) continue;
      const Tensor& tensor = target.tensors[leaf.tensor];
      TensorEntry entry{leaf.name, leaf.path, tensor.shape, tensor.dtype, false, 0, tensor.chunk_count};
      entry.first_chunk = static_cast<std::uint32_t>(metadata.chunks.size());
      for (const Chunk& chunk : target.chunks_of(tensor)) {
        entry.requires_grad = entry.requires_grad || target.stored[chunk.stored].requires_grad;
        metadata.chunks.push_back({chunk.offsets, chunk.sizes, item_of_[chunk.stored]});
      }
      metadata.tensors.push_back(entry);
    }
  }

  static void check_dtype(const Tensor& tensor) {
    if (tensor.dtype != DType::kFloat6E2m3fn && tensor.dtype != DType::kFloat6E3m2fn) return;
    throw Error(ErrorCode::kUnsupported, fmt::format("tensor '{}' is {}, a dtype that torch does not have", tensor.name,
                                                     dtype_name(tensor.dtype)))
        .of_tensor(tensor.name)
        .hint(fmt::format("leave it out with --exclude '{}'", tensor.name));
  }

  static SavedZip item_zip(const Catalog& target, std::uint32_t stored) {
    const StoredTensor& box = target.stored[stored];
    torch_save::TensorView view;
    view.dtype = box.dtype;
    view.shape = box.shape;
    view.strides = box.strides;
    view.first = box.first;
    view.key = "0";
    view.location = "cpu";
    view.storage_bytes = target.storages[box.storage].bytes;
    Value root;
    become_tensor(root, 0);
    return SavedZip("archive", torch_save::dump(root, [&](std::int64_t) { return view; }),
                    std::array{view.storage_bytes});
  }

  /// Orders items by file, gives each its offset, and keeps the files that hold something.
  void settle_files(Catalog& target, Metadata& metadata) {
    std::vector<std::uint32_t> order(placed_.size());
    for (std::uint32_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](std::uint32_t a, std::uint32_t b) { return placed_[a].item.file < placed_[b].item.file; });
    std::vector<File> files;
    std::vector<PlacedItem> placed;
    metadata.items.resize(placed_.size());
    std::uint32_t last = kNoIndex;
    for (const std::uint32_t i : order) {
      PlacedItem one = placed_[i];
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
      metadata.items[i] = one.item;
      placed.push_back(one);
      if (one.stored != kNoIndex) {
        Storage& storage = target.storages[target.stored[one.stored].storage];
        storage.file = one.item.file;
        storage.offset = one.item.offset + one.data_offset;
      }
    }
    placed_ = std::move(placed);
    for (const File& file : files) metadata.files.push_back(file.path);
    target.files = std::move(files);
  }

  void write_frame(const Catalog& target, const Checksums& checksums, const PlacedItem& one, JoinedWrites& writes) {
    const auto write = [&](const SavedZip& zip, std::span<const std::uint32_t> crcs) {
      for (const SavedZip::Span& span : zip.frame(crcs)) writes.add(one.item.offset + span.offset, span.content);
    };
    if (one.stored == kNoIndex) return write(SavedZip("archive", pickles_[one.object], {}), {});
    const std::uint32_t storage = target.stored[one.stored].storage;
    const std::uint32_t crc = target.storages[storage].bytes == 0 ? 0 : checksums.crc32_of(storage);
    write(item_zip(target, one.stored), std::array{crc});
  }

  std::vector<PlacedItem> placed_;      // By file, then offset; before settle_files in the metadata's order.
  std::vector<std::string> pickles_;    // Of bytes items.
  std::vector<std::uint32_t> item_of_;  // Stored tensor -> its number in the metadata's items.
  std::string metadata_;
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  if (options.single_file) {
    throw Error(ErrorCode::kInvalidArgument, "dcp is a folder, not one file").hint("name a folder after -o");
  }
  return std::make_unique<DcpWriter>();
}

}  // namespace shard::dcp
