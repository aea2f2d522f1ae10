#include "formats/hdf5/virtual_datasets.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <numeric>

#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

/// "a/b" for "/a//b" and "./a/b".
std::string normal_path(std::string_view path) {
  std::string normal;
  while (!path.empty()) {
    const std::size_t end = std::min(path.find('/'), path.size());
    const std::string_view part = path.substr(0, end);
    path.remove_prefix(std::min(end + 1, path.size()));
    if (part.empty() || part == ".") continue;
    if (!normal.empty()) normal += '/';
    normal += part;
  }
  return normal;
}

/// The source's dimension for each dimension of a tensor's box; sizes of 1 may be missing on either side.
std::vector<int> matching_dims(const VirtualBox& box) {
  std::vector<int> dims(box.sizes.size(), -1);
  if (box.sizes == box.source_sizes) {
    std::iota(dims.begin(), dims.end(), 0);
    return dims;
  }
  const auto expect = [](bool fits) {
    if (fits) return;
    throw Error(ErrorCode::kUnsupported,
                "cannot read a virtual dataset whose boxes have different shapes in their files");
  };
  std::size_t source = 0;
  const auto skip_ones = [&] {
    while (source < box.source_sizes.size() && box.source_sizes[source] == 1) ++source;
  };
  for (std::size_t d = 0; d < dims.size(); ++d) {
    if (box.sizes[d] == 1) continue;
    skip_ones();
    expect(source < box.source_sizes.size() && box.source_sizes[source] == box.sizes[d]);
    dims[d] = static_cast<int>(source++);
  }
  skip_ones();
  expect(source == box.source_sizes.size());
  return dims;
}

/// Adds the dimensions of size 1, which the file does not record if the whole source is selected.
VirtualBox with_source_dims(VirtualBox box, const std::vector<std::int64_t>& shape) {
  const auto without_ones = [](std::vector<std::int64_t> sizes) {
    std::erase(sizes, 1);
    return sizes;
  };
  const bool is_all = box.source_sizes.size() != shape.size() &&
                      without_ones(box.source_sizes) == without_ones(shape) &&
                      std::ranges::all_of(box.source_offsets, [](std::int64_t offset) { return offset == 0; });
  if (is_all) {
    box.source_sizes = shape;
    box.source_offsets.assign(shape.size(), 0);
  }
  return box;
}

bool is_inside(std::span<const std::int64_t> offsets, std::span<const std::int64_t> sizes,
               std::span<const std::int64_t> shape) {
  if (offsets.size() != shape.size() || sizes.size() != shape.size()) return false;
  for (std::size_t d = 0; d < shape.size(); ++d) {
    if (offsets[d] < 0 || sizes[d] < 0 || offsets[d] > shape[d] || sizes[d] > shape[d] - offsets[d]) return false;
  }
  return true;
}

/// Appends the parts of `whole` outside `hole`: at most two slabs for each dimension.
void subtract(const Box& whole, const Box& hole, std::vector<Box>& rest) {
  if (intersect(whole, hole).empty()) {
    rest.push_back(whole);
    return;
  }
  Box left = whole;
  for (int d = 0; d < whole.dims; ++d) {
    const auto at = static_cast<std::size_t>(d);
    const std::int64_t begin = left.offset[at], end = begin + left.size[at];
    const std::int64_t low = std::max(begin, hole.offset[at]), high = std::min(end, hole.offset[at] + hole.size[at]);
    const auto add = [&](std::int64_t from, std::int64_t to) {
      if (from >= to) return;
      Box part = left;
      part.offset[at] = from;
      part.size[at] = to - from;
      rest.push_back(part);
    };
    add(begin, low);
    add(high, end);
    left.offset[at] = low;
    left.size[at] = high - low;
  }
}

}  // namespace

PlacedDataset VirtualDatasets::add(const Entry& entry, std::uint32_t file, std::uint32_t tensor) {
  const ElementType element = element_of(entry);
  if (!element.dims.empty()) refuse_type(entry.type);
  Pending pending{tensor, file, fill_of(*catalog_.arena, entry, element), {}};
  for (const VirtualMapping& mapping : entry.mappings) {
    pending.mappings.push_back({catalog_.arena->copy(mapping.file), normal_path(mapping.dataset), mapping.boxes});
    sources_[std::string(mapping.file)].try_emplace(pending.mappings.back().dataset);
  }
  pending_.push_back(std::move(pending));
  return {.dtype = element.dtype, .shape = entry.space.shape, .box = {}, .is_enum = element.is_enum};
}

/// Runs after all files of the source were listed, since a mapping may refer to a file that comes later.
void VirtualDatasets::resolve(const std::function<void(std::string_view, const Take&)>& read) {
  read_sources(read);
  for (const Pending& pending : pending_) {
    builder_.resume(pending.tensor);
    try {
      append_mapped(pending);
      append_rest(pending);
    } catch (Error& error) {
      throw error.of_tensor(builder_.tensor().name);
    }
  }
}

/// Reads every source file once, regardless of how many datasets map it.
void VirtualDatasets::read_sources(const std::function<void(std::string_view, const Take&)>& read) {
  for (auto& [name, datasets] : sources_.entries()) {
    read(name, [&](const Entry& entry, std::uint32_t file, std::int32_t rank) {
      if (entry.kind == EntryKind::kGroup) return;
      std::optional<PlacedDataset>* const wanted = datasets.find(fmt::format("{}", fmt::join(entry.links, "/")));
      if (wanted == nullptr) return;
      if (entry.kind == EntryKind::kUnread) {
        throw Error(ErrorCode::kUnsupported, "cannot read a dataset of which a virtual dataset takes parts")
            .in_file(catalog_.files[file].path)
            .of_tensor(fmt::format("{}", fmt::join(entry.links, ".")))
            .because(std::string(entry.why));
      }
      if (entry.storage == StorageKind::kVirtual) {
        throw Error(ErrorCode::kUnsupported, "cannot read a virtual dataset over a virtual dataset")
            .in_file(catalog_.files[file].path);
      }
      *wanted = place_dataset(catalog_, views_, file, rank, entry);
    });
  }
}

void VirtualDatasets::append_mapped(const Pending& pending) {
  const Tensor tensor = catalog_.tensors[pending.tensor];
  for (const Mapping& mapping : pending.mappings) {
    const std::optional<PlacedDataset>& source = *sources_.find(mapping.file)->find(mapping.dataset);
    if (!source) {
      throw Error(ErrorCode::kCorruption, fmt::format("the file lacks the dataset '{}'", mapping.dataset))
          .in_file(mapping.file)
          .of_kind(FindingKind::kIndexMismatch);
    }
    if (source->dtype != tensor.dtype) {
      throw Error(ErrorCode::kUnsupported, "cannot read a virtual dataset whose datatype is not that of its files")
          .in_file(mapping.file)
          .expected(dtype_name(tensor.dtype))
          .found(dtype_name(source->dtype));
    }
    for (const VirtualBox& box : mapping.boxes) {
      append_box(tensor, mapping, *source, with_source_dims(box, source->shape));
    }
  }
}

void VirtualDatasets::append_box(const Tensor& tensor, const Mapping& mapping, const PlacedDataset& source,
                                 const VirtualBox& box) {
  if (!is_inside(box.offsets, box.sizes, tensor.shape)) {
    throw Error(ErrorCode::kCorruption, "a mapping of the virtual dataset is outside it")
        .of_kind(FindingKind::kOutOfBounds)
        .expected(shard::to_string(tensor.shape))
        .found(shard::to_string(Box(box.offsets, box.sizes)));
  }
  if (!is_inside(box.source_offsets, box.source_sizes, source.shape)) {
    throw Error(ErrorCode::kCorruption, fmt::format("a mapping is outside the dataset '{}'", mapping.dataset))
        .in_file(mapping.file)
        .of_kind(FindingKind::kOutOfBounds)
        .expected(shard::to_string(source.shape))
        .found(shard::to_string(Box(box.source_offsets, box.source_sizes)));
  }
  append_chunks(builder_, views_, source, box.source_offsets, box.source_sizes, box.offsets, matching_dims(box));
}

/// Adds the boxes that no mapping covers; HDF5 fills them with the fill value. Boxes are subtracted one by one; the
/// work is charged, because their number may grow with each.
void VirtualDatasets::append_rest(const Pending& pending) {
  const Tensor tensor = catalog_.tensors[pending.tensor];
  std::int64_t mapped = 0;
  for (const Mapping& mapping : pending.mappings) {
    for (const VirtualBox& box : mapping.boxes) mapped = checked_add(mapped, checked_numel(box.sizes));
  }
  if (mapped >= checked_numel(tensor.shape)) return;  // Overlaps are found later, together with all others.
  const std::vector<std::int64_t> zeros(static_cast<std::size_t>(tensor.shape.size()));
  std::vector<Box> rest{Box(zeros, tensor.shape)}, next;
  for (const Mapping& mapping : pending.mappings) {
    for (const VirtualBox& box : mapping.boxes) {
      catalog_.arena->charge(Charge::kVisits, std::ssize(rest));
      next.clear();
      for (const Box& each : rest) subtract(each, Box(box.offsets, box.sizes), next);
      rest.swap(next);
    }
  }
  for (const Box& each : rest) {
    const auto dims = static_cast<std::size_t>(each.dims);
    const std::span<const std::int64_t> sizes(each.size.data(), dims), offsets(each.offset.data(), dims);
    const std::uint32_t stored = add_constant(builder_, views_, pending.file, -1, tensor.dtype, sizes, pending.fill);
    builder_.add_chunk(stored, offsets, sizes, catalog_.stored[stored].strides, 0);
  }
}

}  // namespace shard::hdf5
