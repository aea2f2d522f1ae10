#include "libshard/checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/format.h"
#include "formats/hdf5/kept_content.h"
#include "formats/hdf5/library/image.h"
#include "formats/hdf5/outline.h"
#include "formats/hdf5/root_notes.h"
#include "libshard/catalog/catalog.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/arena.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/io/file_writer.h"

namespace shard::hdf5 {

namespace {

// Several files with a master file, which shows the tensors of all files as virtual datasets. A virtual dataset needs
// at least one dimension and one element; other tensors are stored in the master itself.

inline constexpr const char* kMasterName = "master.h5";

struct Parts {
  /// The index of the master, which is the last file; files before it are parts.
  std::uint32_t master = 0;
  std::int64_t world_size = 0;                     ///< 0 if the parts contain whole tensors and do not belong to ranks.
  std::vector<std::vector<std::uint32_t>> chunks;  ///< By part: its chunks, in the order of tensors.
  std::vector<std::uint32_t> tensor_of_chunk;
};

Outline::Keys keys_of(const Tensor& tensor) { return {tensor.name, tensor.path}; }

std::uint32_t storage_of(const Catalog& target, const Chunk& chunk) { return target.stored[chunk.stored].storage; }

void move_to_master(Catalog& target, std::uint32_t master) {
  for (const Tensor& tensor : target.tensors) {
    if (!tensor.shape.empty() && !is_empty(tensor.shape)) continue;
    for (const Chunk& chunk : target.chunks_of(tensor)) target.storages[storage_of(target, chunk)].file = master;
  }
}

/// Drops empty files, except the master, which is last.
void drop_empty_files(Catalog& target) {
  std::vector<bool> holds(target.files.size());
  for (const Storage& storage : target.storages) holds[storage.file] = true;
  holds.back() = true;
  std::vector<std::uint32_t> numbers(target.files.size());
  std::vector<File> files;
  for (std::size_t i = 0; i < holds.size(); ++i) {
    numbers[i] = static_cast<std::uint32_t>(files.size());
    if (holds[i]) files.push_back(target.files[i]);
  }
  for (Storage& storage : target.storages) storage.file = numbers[storage.file];
  target.files = std::move(files);
}

/// The world size of files of ranks. The last file before the master has the highest rank.
std::int64_t world_size_of(const Catalog& target) {
  std::int64_t size = target.world_size.value_or(0);
  for (const File& file : target.files) size = std::max<std::int64_t>(size, file.rank + std::int64_t{1});
  return size;
}

void name_files(Catalog& target, const Parts& parts) {
  for (std::uint32_t i = 0; i < parts.master; ++i) {
    File& file = target.files[i];
    file.path = parts.world_size > 0 ? rank_file_name(file.rank, parts.world_size)
                                     : fmt::format("model-{:05}-of-{:05}.h5", i + 1, parts.master);
  }
  target.files[parts.master].path = kMasterName;
}

/// "%[4:8,0:16]". Encoded keys have no '%' before a bracket.
std::string suffix_of(const Chunk& chunk) {
  std::string suffix = "%[";
  for (int d = 0; d < chunk.sizes.size(); ++d) {
    suffix += fmt::format("{}{}:{}", d > 0 ? "," : "", chunk.offsets[d], chunk.offsets[d] + chunk.sizes[d]);
  }
  return suffix + ']';
}

/// True if the elements of the box are contiguous in the whole tensor.
bool is_run(Dims shape, const Chunk& chunk) {
  int d = 0;
  while (d < shape.size() && chunk.sizes[d] == 1) ++d;
  for (++d; d < shape.size(); ++d) {
    if (chunk.sizes[d] != shape[d]) return false;
  }
  return true;
}

/// Packed elements are in a dataset of bytes.
OutgoingBox packed_box(const Tensor& tensor, const Chunk& chunk) {
  if (!is_run(tensor.shape, chunk)) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write pieces of tensor '{}' to HDF5", tensor.name))
        .of_tensor(tensor.name)
        .because(
            fmt::format("its elements of dtype {} are stored as a row of bytes, and a piece is not one run of them",
                        dtype_name(tensor.dtype)))
        .suggest(Remedy::kWriteAs, "dcp");
  }
  const DTypeBlock block = dtype_block(tensor.dtype);
  std::int64_t first = 0, count = 1;
  for (int d = 0; d < tensor.shape.size(); ++d) {
    first = first * tensor.shape[d] + chunk.offsets[d];
    count *= chunk.sizes[d];
  }
  return {{first / block.elements * block.bytes}, {count / block.elements * block.bytes}, {}, {}};
}

OutgoingBox box_of(const Tensor& tensor, const Chunk& chunk) {
  if (dtype_block(tensor.dtype).elements > 1) return packed_box(tensor, chunk);
  return {{chunk.offsets.begin(), chunk.offsets.end()}, {chunk.sizes.begin(), chunk.sizes.end()}, {}, {}};
}

std::int64_t bytes_of(const Tensor& tensor) { return checked_bytes(checked_numel(tensor.shape), tensor.dtype); }

/// Adds the master, moves tensors that cannot be virtual to it, drops parts that become empty, and names all files.
Parts arrange_parts(Catalog& target) {
  target.files.push_back({"", 0, -1});
  move_to_master(target, static_cast<std::uint32_t>(target.files.size() - 1));
  const bool by_rank = target.files[0].rank >= 0;
  const std::int64_t world_size = by_rank ? world_size_of(target) : 0;
  drop_empty_files(target);
  Parts parts;
  parts.master = static_cast<std::uint32_t>(target.files.size() - 1);
  parts.world_size = world_size;
  name_files(target, parts);
  parts.chunks.resize(parts.master);
  parts.tensor_of_chunk.resize(target.chunks.size());
  for (std::uint32_t i = 0; i < target.tensors.size(); ++i) {
    const Tensor& tensor = target.tensors[i];
    for (std::uint32_t chunk = tensor.first_chunk; chunk < tensor.first_chunk + tensor.chunk_count; ++chunk) {
      const std::uint32_t file = target.storages[storage_of(target, target.chunks[chunk])].file;
      if (file < parts.master) parts.chunks[file].push_back(chunk);
      parts.tensor_of_chunk[chunk] = i;
    }
  }
  return parts;
}

/// The datasets of a part. A further box of a tensor has its offset after its name. Sets `paths`, by chunk.
Outline part_outline(const Catalog& target, const Parts& parts, std::uint32_t file, std::vector<std::string>& paths) {
  Outline outline;
  HashMap<std::uint64_t, std::uint32_t> datasets;  // By storage, because aliases share a dataset.
  std::uint32_t last = kNoIndex;
  for (const std::uint32_t number : parts.chunks[file]) {
    const Chunk& chunk = target.chunks[number];
    const Tensor& tensor = target.tensors[parts.tensor_of_chunk[number]];
    const Storage& storage = target.storages[storage_of(target, chunk)];
    const auto [dataset, is_new] = datasets.try_emplace(std::uint64_t{storage_of(target, chunk)}, 0U);
    if (is_new) dataset = outline.add_dataset(tensor.dtype, chunk.sizes, storage.offset, storage.bytes);
    const bool is_first = std::exchange(last, parts.tensor_of_chunk[number]) != parts.tensor_of_chunk[number];
    paths[number] = outline.link(keys_of(tensor), dataset, is_first ? "" : suffix_of(chunk));
  }
  if (parts.world_size > 0) {
    outline.add_root_attribute(kRankAttribute, integer_content(target.files[file].rank));
    outline.add_root_attribute(kWorldSizeAttribute, integer_content(parts.world_size));
  }
  return outline;
}

/// The tensors of all files. `paths` has the path of each chunk in its file.
/// \throws Error kUnsupported  a box of packed elements that is not a run of bytes.
Outline master_outline(const Catalog& target, const Parts& parts, const std::vector<std::string>& paths) {
  Outline outline;
  std::vector<std::uint32_t> datasets(target.storages.size(), kNoIndex);  // By the storage of the first chunk.
  for (const Tensor& tensor : target.tensors) {
    const Storage& storage = target.storages[storage_of(target, target.chunks[tensor.first_chunk])];
    std::uint32_t& dataset = datasets[storage_of(target, target.chunks[tensor.first_chunk])];
    if (dataset == kNoIndex && storage.file == parts.master) {
      dataset = outline.add_dataset(tensor.dtype, tensor.shape, storage.offset, storage.bytes);
    } else if (dataset == kNoIndex) {
      std::vector<OutgoingBox> boxes;
      for (std::uint32_t i = tensor.first_chunk; i < tensor.first_chunk + tensor.chunk_count; ++i) {
        boxes.push_back(box_of(tensor, target.chunks[i]));
        boxes.back().file = target.files[target.storages[storage_of(target, target.chunks[i])].file].path;
        boxes.back().dataset = paths[i];
      }
      dataset = outline.add_virtual(tensor.dtype, tensor.shape, bytes_of(tensor), std::move(boxes));
    }
    outline.link(keys_of(tensor), dataset);
  }
  if (parts.world_size > 0) outline.add_root_attribute(kWorldSizeAttribute, integer_content(parts.world_size));
  return outline;
}

// Lists of scalars of one type as attributes with arrays, so that other programs can read them.
//
// | list or tuple of | array of |
// |---|---|
// | ints of 64 bits | int64 |
// | floats | float64 |
// | bools | the enum of h5py |
// | str in UTF-8 without NUL | UTF-8 strings of variable length |
//
// Elements of an array are read as the objects of a list, so the array is equivalent to a group of attributes.

bool is_sequence(const Value& value) { return value.kind == ValueKind::kList || value.kind == ValueKind::kTuple; }

bool is_element(const Value& value) {
  switch (value.kind) {
    case ValueKind::kBool:
    case ValueKind::kInt:
    case ValueKind::kFloat:
      return true;
    case ValueKind::kString:
      return is_plain_text(value.text());
    default:
      return false;
  }
}

bool becomes_array(const Value& value) {
  if (!is_sequence(value) || value.items().empty()) return false;
  const ValueKind kind = value.items().front()->kind;
  return std::ranges::all_of(value.items(), [&](const Value* each) { return each->kind == kind && is_element(*each); });
}

/// One content of all elements. \pre becomes_array(list)
OutgoingContent array_content(const Value& list) {
  OutgoingContent array;
  for (const Value* const each : list.items()) {
    OutgoingContent element = content_of(*each);
    array.type = std::move(element.type);
    array.bytes += element.bytes;
    std::ranges::move(element.strings, std::back_inserter(array.strings));
  }
  array.space = {SpaceKind::kSimple, {std::ssize(list.items())}};
  return array;
}

/// The objects of a target by their names.
class ObjectNumbers {
 public:
  explicit ObjectNumbers(const Catalog& target) : target_(target) {
    for (std::uint32_t i = 0; i < target.objects.size(); ++i) numbers_.try_emplace(target.objects[i].name, i);
  }

  /// The objects of a list's elements. Nothing if one of them is not an object, or is marked.
  std::optional<std::vector<std::uint32_t>> of(const TreeLeaf& list, const std::vector<bool>& is_written) const {
    std::vector<std::uint32_t> numbers;
    const std::span<Value* const> items = list.value->items();
    for (std::size_t i = 0; i < items.size(); ++i) {
      const std::string name = list.path.empty() ? fmt::format("{}", i) : fmt::format("{}.{}", list.name, i);
      const std::uint32_t* const number = numbers_.find(std::string_view(name));
      if (number == nullptr || is_written[*number] || target_.objects[*number].value != items[i]) return std::nullopt;
      numbers.push_back(*number);
    }
    return numbers;
  }

 private:
  const Catalog& target_;
  HashMap<std::string_view, std::uint32_t> numbers_;
};

/// Takes the lists of `target` that are written as arrays, and marks their objects in `is_written`; objects that are
/// already marked are skipped. Objects of lists are also marked in `needs_no_tree`; those of tuples are not, because
/// only the tree distinguishes a tuple from a list. `arena` stores the paths of the result.
std::vector<KeptContent> take_lists(const Catalog& target, Arena& arena, std::vector<bool>& is_written,
                                    std::vector<bool>& needs_no_tree) {
  std::vector<KeptContent> contents;
  if (target.root == nullptr || target.objects.empty()) return contents;
  const ObjectNumbers numbers(target);
  visit_leaves(arena, *target.root, becomes_array, [&](const TreeLeaf& leaf) {
    if (leaf.path.empty() || !becomes_array(*leaf.value)) return;
    const std::optional<std::vector<std::uint32_t>> objects = numbers.of(leaf, is_written);
    if (!objects) return;
    for (const std::uint32_t object : *objects) {
      is_written[object] = true;
      needs_no_tree[object] = leaf.value->kind == ValueKind::kList;
    }
    contents.push_back(
        {KeptAs::kList, {}, std::string(leaf.name), {leaf.path.begin(), leaf.path.end()}, array_content(*leaf.value)});
  });
  return contents;
}

// From an outline to a file's image.

/// Attributes after the eighth, and those too large for a header, are stored in an indexed heap: libhdf5's defaults.
PropertiesHandle dataset_properties() {
  PropertiesHandle properties = without_times(H5P_DATASET_CREATE);
  checked(H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER));
  return properties;
}

/// The header of a dataset without attributes takes half the bytes.
PropertiesHandle contiguous_properties(bool has_attributes) {
  PropertiesHandle properties = dataset_properties();
  checked(H5Pset_layout(properties.get(), H5D_CONTIGUOUS));
  checked(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY));
  checked(H5Pset_dset_no_attrs_hint(properties.get(), !has_attributes));
  return properties;
}

std::vector<hsize_t> sizes_of(std::span<const std::int64_t> numbers) { return {numbers.begin(), numbers.end()}; }

void add_attributes(hid_t object, std::span<const std::pair<std::string, OutgoingContent>> attributes) {
  for (const auto& [name, content] : attributes) add_attribute(object, name, content.view());
}

/// Builds the file of an outline. \pre library_lock() is held; datasets with bytes do not overlap and are before
/// `metadata_begin`
/// \throws LibraryError
/// Cost: linear in names and attributes, about 20 us each.
class Builder {
 public:
  Builder(const Outline& outline, std::int64_t metadata_begin)
      : outline_(outline),
        image_(std::make_unique<Image>(metadata_begin)),
        links_(with_utf8_names(H5P_LINK_CREATE)),
        groups_(without_times(H5P_GROUP_CREATE)),
        contiguous_{contiguous_properties(false), contiguous_properties(true)},
        first_paths_(outline.datasets().size()) {}

  std::unique_ptr<Image> build() {
    {
      const GroupHandle root(H5Gopen2(image_->file(), "/", H5P_DEFAULT));
      fill(root.get(), outline_.root(), "");
      types_.clear();
    }
    image_->close();
    return std::move(image_);
  }

 private:
  void fill(hid_t group, const OutgoingNode& node, const std::string& path) {
    for (const auto& [name, member] : node.members) {
      if (member.dataset != kNoIndex) {
        add_dataset(group, name, member.dataset, path);
      } else {
        const GroupHandle inner(H5Gcreate2(group, name.c_str(), links_.get(), groups_.get(), H5P_DEFAULT));
        fill(inner.get(), member, path + '/' + name);
      }
    }
    add_attributes(group, node.attributes);
  }

  void add_dataset(hid_t group, const std::string& name, std::uint32_t number, const std::string& path) {
    const OutgoingDataset& dataset = outline_.datasets()[number];
    std::string& first = first_paths_[number];
    if (!first.empty()) {
      checked(H5Lcreate_hard(image_->file(), first.c_str(), group, name.c_str(), links_.get(), H5P_DEFAULT));
      return;
    }
    if (dataset.names > 1) first = path + '/' + name;
    const DatasetHandle made = make_dataset(group, name, dataset);
    add_attributes(made.get(), dataset.attributes);
  }

  DatasetHandle make_dataset(hid_t group, const std::string& name, const OutgoingDataset& dataset) {
    if (dataset.content) return make_of_content(group, name, dataset);
    return dataset.boxes.empty() ? make_contiguous(group, name, dataset) : make_virtual(group, name, dataset);
  }

  /// Makes a dataset whose elements libhdf5 writes itself, among the metadata.
  DatasetHandle make_of_content(hid_t group, const std::string& name, const OutgoingDataset& dataset) {
    const Content content = dataset.content->view();
    DatasetHandle made(H5Dcreate2(group, name.c_str(), make_type(content.type).get(), make_space(content.space).get(),
                                  links_.get(), without_times(H5P_DATASET_CREATE).get(), H5P_DEFAULT));
    write_elements(made.get(), content);
    return made;
  }

  DatasetHandle make_contiguous(hid_t group, const std::string& name, const OutgoingDataset& dataset) {
    if (dataset.bytes > 0) image_->place_next(dataset.offset);
    DatasetHandle made(H5Dcreate2(group, name.c_str(), type_of_elements(dataset.dtype), space_of(dataset).get(),
                                  links_.get(), contiguous_[dataset.attributes.empty() ? 0 : 1].get(), H5P_DEFAULT));
    const bool is_placed = dataset.bytes == 0 || H5Dget_offset(made.get()) == static_cast<haddr_t>(dataset.offset);
    if (!is_placed) throw std::logic_error("libhdf5 put a dataset at an unexpected offset");
    return made;
  }

  /// Escapes '%' in the name of a source, where it introduces the number of a block.
  static std::string without_numbers(std::string_view name) {
    std::string doubled;
    for (const char each : name) doubled.append(each == '%' ? 2 : 1, each);
    return doubled;
  }

  DatasetHandle make_virtual(hid_t group, const std::string& name, const OutgoingDataset& dataset) {
    const PropertiesHandle properties = dataset_properties();
    const SpaceHandle space = space_of(dataset);
    for (const OutgoingBox& box : dataset.boxes) {
      const std::vector<hsize_t> begin = sizes_of(box.offsets), sizes = sizes_of(box.sizes);
      checked(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, begin.data(), nullptr, sizes.data(), nullptr));
      const SpaceHandle source(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr));
      checked(H5Pset_virtual(properties.get(), space.get(), box.file.c_str(), without_numbers(box.dataset).c_str(),
                             source.get()));
    }
    checked(H5Sselect_all(space.get()));
    return DatasetHandle(H5Dcreate2(group, name.c_str(), type_of_elements(dataset.dtype), space.get(), links_.get(),
                                    properties.get(), H5P_DEFAULT));
  }

  static SpaceHandle space_of(const OutgoingDataset& dataset) {
    if (dataset.shape.empty()) return make_space({});
    return make_space({SpaceKind::kSimple, dataset.shape});
  }

  hid_t type_of_elements(DType dtype) {
    const auto known = types_.find(dtype);
    if (known != types_.end()) return known->second.get();
    return types_.emplace(dtype, make_type(type_of(dtype))).first->second.get();
  }

  const Outline& outline_;
  std::unique_ptr<Image> image_;
  PropertiesHandle links_, groups_;
  std::array<PropertiesHandle, 2> contiguous_;  ///< Without and with attributes.
  std::map<DType, TypeHandle> types_;
  std::vector<std::string> first_paths_;  ///< By dataset: its first name, if it has several.
};

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

/// Large storages start on pages of the file, so that they can be mapped and cloned; small ones are packed closely.
std::int64_t alignment_of(std::int64_t bytes) {
  constexpr std::int64_t kLarge = 64 << 10, kPage = 4096, kCacheLine = 64;
  return bytes >= kLarge ? kPage : kCacheLine;
}

/// Places storages in their files in the order of tensors. \returns the end of the elements in each file.
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

/// A file of whole tensors with all objects.
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

  /// Adds the image of the next file.
  void add_image(Catalog& target, Outline outline, std::int64_t metadata_begin) {
    outline.finish();
    File& file = target.files[images_.size()];
    try {
      const std::unique_lock lock = library_lock();
      images_.push_back(Builder(outline, metadata_begin).build());
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
