#include "formats/hdf5/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include "formats/hdf5/build.h"
#include "formats/hdf5/kept_content.h"
#include "formats/hdf5/list_arrays.h"
#include "formats/hdf5/master.h"
#include "formats/hdf5/tree.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::hdf5 {

namespace {

constexpr int kMaxDatasetDims = 32;

void check_tensors(const Catalog& target) {
  for (const Tensor& tensor : target.tensors) {
    if (tensor.shape.size() <= kMaxDatasetDims || dtype_block(tensor.dtype).elements > 1) continue;
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write tensor '{}' to HDF5", tensor.name))
        .of_tensor(tensor.name)
        .because(fmt::format("it has {} dimensions, a dataset has at most {}", tensor.shape.size(), kMaxDatasetDims))
        .suggest(Remedy::kExclude, tensor.name);
  }
}

std::int64_t aligned(std::int64_t offset, std::int64_t step) { return (offset + step - 1) / step * step; }

/// Large storages begin on pages of the file, so that they can be mapped and cloned; small ones lie close together.
std::int64_t alignment_of(std::int64_t bytes) {
  constexpr std::int64_t kLarge = 64 << 10, kPage = 4096, kCacheLine = 64;
  return bytes >= kLarge ? kPage : kCacheLine;
}

/// Puts storages into their files in the order of tensors. \returns for each file where its elements end.
std::vector<std::int64_t> place_storages(Catalog& target) {
  std::vector<std::int64_t> ends(target.files.size(), kSuperblockBytes);
  for (const Chunk& chunk : target.chunks) {
    Storage& storage = target.storage_of(chunk);
    if (storage.offset >= 0) continue;
    std::int64_t& end = ends[storage.file];
    storage.offset = storage.bytes == 0 ? kSuperblockBytes : aligned(end, alignment_of(storage.bytes));
    end = std::max(end, checked_add(storage.offset, storage.bytes));
  }
  for (std::int64_t& end : ends) end = aligned(end, 8);
  return ends;
}

void add_objects(const Catalog& target, Outline& outline) {
  KeptContents kept = kept_contents(target);
  std::vector<bool> needs_no_tree = kept.is_kept;
  Arena arena;
  std::ranges::move(take_lists(target, arena, kept.is_kept, needs_no_tree), std::back_inserter(kept.contents));
  for (const bool are_datasets : {true, false}) {
    for (const KeptContent& each : kept.contents) {
      if ((each.as == KeptAs::kDataset) == are_datasets) outline.add_kept(each);
    }
  }
  for (std::size_t i = 0; i < target.objects.size(); ++i) {
    const Object& object = target.objects[i];
    if (object.value != nullptr && !kept.is_kept[i]) outline.add_object({object.name, object.path}, *object.value);
  }
  for (const auto& [key, text] : target.metadata) outline.add_text(key, text);
  if (const std::string tree = dump_tree(target, needs_no_tree); !tree.empty()) {
    outline.add_root_attribute(kTreeAttribute, pickle_content(tree));
  }
}

/// A file of whole tensors with all that belongs to them.
Outline whole_outline(const Catalog& target) {
  Outline outline;
  std::vector<std::uint32_t> datasets(target.storages.size(), kNoIndex);
  for (const Tensor& tensor : target.tensors) {
    const std::uint32_t number = target.stored_of(tensor).storage;
    const Storage& storage = target.storages[number];
    if (datasets[number] == kNoIndex) {
      datasets[number] = outline.add_dataset(tensor.dtype, tensor.shape, storage.offset, storage.bytes);
    }
    outline.link({tensor.name, tensor.path}, datasets[number]);
  }
  add_objects(target, outline);
  return outline;
}

class Hdf5Writer final : public Writer {
 public:
  explicit Hdf5Writer(const WriteOptions& options) : options_(options) {}

  void place(Catalog& target) override {
    if (target.files.empty()) target.files.emplace_back();
    const bool is_one = target.files.size() == 1 && target.files[0].rank < 0;
    if (options_.single_file && !is_one) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot write {} files as one", target.files.size()))
          .suggest(Remedy::kNameFolder);
    }
    check_tensors(target);
    is_one ? place_one(target) : place_parts(target);
  }

  void begin_file(const Catalog&, std::uint32_t file, FileWriter& to) override {
    images_[file]->visit([&](std::int64_t offset, std::span<const std::byte> bytes) { to.write_at(offset, bytes); });
  }

  bool is_folder() const override { return !options_.single_file; }

 private:
  void place_one(Catalog& target) {
    target.files[0].path = options_.single_file ? options_.base_name : "model.h5";
    const std::vector<std::int64_t> ends = place_storages(target);
    add_image(target, whole_outline(target), ends[0]);
  }

  void place_parts(Catalog& target) {
    const Parts parts = arrange_parts(target);
    const std::vector<std::int64_t> ends = place_storages(target);
    std::vector<std::string> paths(target.chunks.size());
    for (std::uint32_t file = 0; file < parts.master; ++file) {
      add_image(target, part_outline(target, parts, file, paths), ends[file]);
    }
    Outline master = master_outline(target, parts, paths);
    add_objects(target, master);
    add_image(target, std::move(master), ends[parts.master]);
  }

  /// The image of the next file.
  void add_image(Catalog& target, Outline outline, std::int64_t metadata_begin) {
    outline.finish();
    File& file = target.files[images_.size()];
    try {
      const std::unique_lock lock = library_lock();
      images_.push_back(build_image(outline, metadata_begin));
    } catch (const LibraryError& error) {
      throw Error(ErrorCode::kUnsupported, "cannot lay out an HDF5 file").in_file(file.path).because(error.what());
    }
    file.bytes = images_.back()->bytes();
  }

  WriteOptions options_;
  std::vector<std::unique_ptr<Image>> images_;  ///< By file.
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions& options) { return std::make_unique<Hdf5Writer>(options); }

}  // namespace shard::hdf5
