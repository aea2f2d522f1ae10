#include "formats/hdf5/placed_dataset.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "formats/hdf5/chunk_view.h"
#include "formats/hdf5/values.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

std::shared_ptr<const RandomReader> make_view(const StoredView& view, std::int64_t bytes,
                                              const std::shared_ptr<const RandomReader>& file) {
  std::shared_ptr<const RandomReader> stored;
  std::int64_t offset = 0;
  switch (view.kind) {
    case StoredView::Kind::kFile:
      stored = file;
      offset = view.place.offset;
      break;
    case StoredView::Kind::kConstant:
      stored = constant_view(view.data, bytes, file->name());
      break;
    case StoredView::Kind::kChunk:
      stored = decoded_chunk({.file = file,
                              .place = view.place,
                              .bytes = bytes,
                              .filters = {view.filters.begin(), view.filters.end()},
                              .shown = fmt::format("the chunk at {}", view.place.offset)});
      break;
  }
  if (view.code.is_plain()) return stored;
  return decoded_view::as_elements(std::move(stored), offset, bytes, view.code);
}

Error contradiction(const std::string& what) {
  return Error(ErrorCode::kCorruption, what).of_kind(FindingKind::kBadHeader);
}

/// The text of a dataset's attribute `dtype`, or empty.
std::string_view dtype_attribute(const Entry& entry) {
  const auto found = std::ranges::find(entry.attributes, kDtypeAttribute, &Attribute::name);
  const bool is_text = found != entry.attributes.end() && found->content.strings.size() == 1;
  return is_text ? found->content.strings.front() : std::string_view();
}

/// Adds one dataset's storages.
class Placer {
 public:
  Placer(Catalog& catalog, StoredViews& views, std::uint32_t file, std::int32_t rank, const Entry& entry,
         const ElementType& element)
      : catalog_(catalog),
        builder_(catalog),
        views_(views),
        file_(file),
        rank_(rank),
        entry_(entry),
        element_(element) {
    code_.swap_bytes = element.swap ? decoded_view::swapped_bytes(element.dtype) : 1;
    code_.dtype = element.dtype;
  }

  PlacedDataset place() {
    placed_.dtype = element_.dtype;
    placed_.is_enum = element_.is_enum;
    placed_.shape = with_array_dims(entry_.space.shape);
    placed_.box = placed_.shape;
    set_packed_shape();
    bytes_ = checked_bytes(checked_numel(placed_.shape), placed_.dtype);
    if (is_empty(placed_.shape)) return std::move(placed_);
    switch (entry_.storage) {
      case StorageKind::kCompact:
        place_compact();
        break;
      case StorageKind::kContiguous:
        place_contiguous();
        break;
      case StorageKind::kChunked:
        place_chunked();
        break;
      case StorageKind::kVirtual:
        throw contradiction("cannot place a virtual dataset in its own file");
    }
    return std::move(placed_);
  }

 private:
  std::vector<std::int64_t> with_array_dims(std::vector<std::int64_t> dims) const {
    dims.insert(dims.end(), element_.dims.begin(), element_.dims.end());
    if (std::ssize(dims) > kMaxDims) {
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot read {} dimensions, at most {}", dims.size(), kMaxDims));
    }
    return dims;
  }

  /// Packed elements are in a dataset of bytes, and an attribute contains their shape.
  void set_packed_shape() {
    if (dtype_block(element_.dtype).elements == 1) return;
    const auto shape = std::ranges::find(entry_.attributes, kShapeAttribute, &Attribute::name);
    if (shape == entry_.attributes.end() || entry_.storage == StorageKind::kChunked) {
      throw Error(ErrorCode::kUnsupported,
                  fmt::format("cannot read packed elements of dtype {} without the attribute {}",
                              dtype_name(element_.dtype), kShapeAttribute));
    }
    const std::optional<std::vector<std::int64_t>> numbers = integers_of(shape->content);
    if (!numbers) throw contradiction(fmt::format("the attribute {} does not contain integers", kShapeAttribute));
    const std::vector<std::int64_t>& dims = *numbers;
    if (checked_bytes(checked_numel(dims), element_.dtype) != checked_numel(placed_.shape)) {
      throw contradiction(fmt::format("the attribute {} does not fit the dataset", kShapeAttribute))
          .of_kind(FindingKind::kShapeMismatch)
          .expected(shard::to_string(placed_.shape))
          .found(shard::to_string(dims));
    }
    placed_.shape = placed_.box = dims;
  }

  void place_compact() {
    if (std::ssize(entry_.compact) != bytes_) {
      throw contradiction("a compact dataset does not have the size of its shape")
          .expected(bytes_)
          .found(std::ssize(entry_.compact));
    }
    const std::span<std::byte> copy = catalog_.arena->array<std::byte>(entry_.compact.size());
    std::ranges::copy(entry_.compact, copy.begin());
    add_stored(add_view({.kind = StoredView::Kind::kConstant, .data = copy, .code = code_}, bytes_));
  }

  void place_contiguous() {
    if (entry_.offset < 0) return add_fill();
    if (entry_.stored_bytes < bytes_) {
      throw contradiction("a dataset is stored in fewer bytes than it has")
          .of_kind(FindingKind::kTruncated)
          .expected(bytes_)
          .found(entry_.stored_bytes);
    }
    add_bytes(entry_.offset, bytes_);
  }

  /// Chunks are numbered row-major in the grid and listed in ascending order. The numbers between two listed chunks
  /// were never written.
  void place_chunked() {
    if (entry_.chunk_shape.size() != entry_.space.shape.size())
      throw contradiction("chunks do not have the dataset's dimensions");
    placed_.box = with_array_dims(entry_.chunk_shape);
    std::int64_t count = 1;
    for (std::size_t d = 0; d < placed_.box.size(); ++d) {
      if (placed_.box[d] <= 0) throw contradiction("a chunk has no elements");
      count = checked_mul(count, boxes_along(placed_.shape[d], placed_.box[d]));
    }
    catalog_.arena->charge(Charge::kChunks, count);
    chunk_bytes_ = checked_bytes(checked_numel(placed_.box), placed_.dtype);
    filters_ = catalog_.arena->array<Filter>(entry_.filters.size());
    std::ranges::copy(entry_.filters, filters_.begin());
    placed_.stored.reserve(static_cast<std::size_t>(count));
    for (const ChunkPlace& chunk : entry_.chunks) {
      const auto number = static_cast<std::size_t>(chunk.number);
      if (chunk.number < std::ssize(placed_.stored) || chunk.number >= count)
        throw contradiction("a chunk is outside its dataset");
      fill_until(number);
      add_chunk(chunk);
    }
    fill_until(static_cast<std::size_t>(count));
  }

  void add_chunk(const ChunkPlace& chunk) {
    // A chunk is plain if its mask skips every filter.
    const bool is_filtered = !filters_.empty() && (~chunk.skipped & ((1U << filters_.size()) - 1)) != 0;
    if (is_filtered) {
      add_stored(add_view({.kind = StoredView::Kind::kChunk, .place = chunk, .filters = filters_, .code = code_},
                          chunk_bytes_));
      return;
    }
    if (chunk.bytes != chunk_bytes_) {
      throw contradiction("a chunk does not have the size of its shape")
          .expected(chunk_bytes_)
          .found(std::int64_t{chunk.bytes});
    }
    add_bytes(chunk.offset, chunk_bytes_);
  }

  /// Marks the chunks up to number `end` as never written.
  void fill_until(std::size_t end) {
    while (placed_.stored.size() < end) {
      placed_.fill_stored == kNoIndex ? add_fill() : placed_.stored.push_back(placed_.fill_stored);
    }
  }

  void add_fill() {
    placed_.fill_stored = add_constant(builder_, views_, file_, rank_, placed_.dtype, placed_.box,
                                       fill_of(*catalog_.arena, entry_, element_));
    placed_.stored.push_back(placed_.fill_stored);
  }

  void add_bytes(std::int64_t offset, std::int64_t bytes) {
    if (!code_.is_plain()) {
      add_stored(add_view({.place = {.offset = offset}, .code = code_}, bytes));
      return;
    }
    add_stored(builder_.add_storage({.offset = offset, .bytes = bytes, .file = file_}));
  }

  std::uint32_t add_view(const StoredView& view, std::int64_t bytes) {
    const bool is_decoded = view.kind == StoredView::Kind::kChunk;
    const std::uint32_t storage =
        builder_.add_storage({.offset = 0, .bytes = bytes, .file = file_, .plain = false, .is_stream = is_decoded});
    views_.add(storage, view);
    return storage;
  }

  void add_stored(std::uint32_t storage) {
    placed_.stored.push_back(builder_.add_row_major(storage, catalog_.arena->dims(placed_.box), placed_.dtype, rank_));
  }

  Catalog& catalog_;
  CatalogBuilder builder_;
  StoredViews& views_;
  std::uint32_t file_;
  std::int32_t rank_;
  const Entry& entry_;
  const ElementType& element_;
  decoded_view::ElementCode code_;
  PlacedDataset placed_;
  std::int64_t bytes_ = 0, chunk_bytes_ = 0;
  std::span<Filter> filters_;
};

/// Divides a box of a tensor by the grid of its dataset.
class BoxCutter {
 public:
  BoxCutter(CatalogBuilder& builder, StoredViews& views, const PlacedDataset& dataset,
            std::span<const std::int64_t> from, std::span<const std::int64_t> sizes, std::span<const std::int64_t> to,
            std::span<const int> dims)
      : builder_(builder),
        catalog_(builder.catalog()),
        views_(views),
        dataset_(dataset),
        from_(from),
        sizes_(sizes),
        to_(to),
        dims_(dims) {
    for (std::size_t d = 0; d < from.size(); ++d) {
      grid_.push_back(boxes_along(dataset.shape[d], dataset.box[d]));
      begin_.push_back(from[d] / dataset.box[d]);
      counts_.push_back(boxes_along(from[d] + sizes[d], dataset.box[d]) - begin_[d]);
    }
    below_.assign(counts_.size(), 1);
    for (std::size_t d = counts_.size(); d-- > 1;) below_[d - 1] = checked_mul(below_[d], counts_[d]);
  }

  void cut() {
    std::vector<std::int64_t> step(counts_.size());
    std::int64_t cell = 0, fill_begin = -1;
    do {
      const std::uint32_t stored = stored_at(step);
      const bool is_fill = stored == dataset_.fill_stored;
      if (is_fill && fill_begin < 0) fill_begin = cell;
      if (!is_fill) {
        add_fill(std::exchange(fill_begin, -1), cell);
        add(step, ones_, stored);
      }
      ++cell;
    } while (next_index(std::span(step), std::span<const std::int64_t>(counts_)) >= 0);
    add_fill(fill_begin, cell);
  }

 private:
  /// The stored tensor of a cell: its number is the row-major index in the whole grid.
  std::uint32_t stored_at(const std::vector<std::int64_t>& step) const {
    std::int64_t number = 0;
    for (std::size_t d = 0; d < step.size(); ++d) number = number * grid_[d] + begin_[d] + step[d];
    return dataset_.stored[static_cast<std::size_t>(number)];
  }

  /// Cells [begin, end), in row-major order of the box's cells, were never written. Adds as few boxes as possible.
  void add_fill(std::int64_t begin, std::int64_t end) {
    if (begin < 0) return;
    std::vector<std::int64_t> step(counts_.size()), cells;
    while (begin < end) {
      std::int64_t rest = begin;
      for (std::size_t d = 0; d < step.size(); ++d) step[d] = rest / below_[d], rest %= below_[d];
      // The slowest dimension along which a step stays inside the range: whole rows of all faster dimensions.
      std::size_t along = 0;
      while (along + 1 < step.size() && (begin % below_[along] != 0 || begin + below_[along] > end)) ++along;
      cells.assign(step.size(), 1);
      std::copy(counts_.begin() + static_cast<std::ptrdiff_t>(along), counts_.end(),
                cells.begin() + static_cast<std::ptrdiff_t>(along));
      cells[along] = std::min((end - begin) / below_[along], counts_[along] - step[along]);
      const std::int64_t count = cells[along] * below_[along];
      add(step, cells, count == 1 ? dataset_.fill_stored : fill_of_cells(cells));
      begin += count;
    }
  }

  /// A stored tensor of fill values for a box of that many cells.
  std::uint32_t fill_of_cells(const std::vector<std::int64_t>& cells) {
    std::vector<std::int64_t> shape = dataset_.box;
    for (std::size_t d = 0; d < shape.size(); ++d) shape[d] = checked_mul(shape[d], cells[d]);
    const StoredTensor one = catalog_.stored[dataset_.fill_stored];
    const Storage storage = catalog_.storages[one.storage];
    return add_constant(builder_, views_, storage.file, one.rank, one.dtype, shape, views_.fill_of(one.storage));
  }

  /// Adds the chunk of a box of cells at `step`. \pre `stored` has the shape of that box
  void add(const std::vector<std::int64_t>& step, std::span<const std::int64_t> cells, std::uint32_t stored) {
    const Dims strides = catalog_.stored[stored].strides;
    Chunk chunk;
    chunk.stored = stored;
    offsets_.assign(to_.begin(), to_.end());
    cut_sizes_.assign(to_.size(), 1);
    cut_strides_.assign(to_.size(), 0);
    // The first element skips the part of the cells before the box, in every dimension of the dataset.
    for (std::size_t d = 0; d < step.size(); ++d) {
      const std::int64_t corner = corner_of(step, d), low = std::max(from_[d], corner);
      chunk.first += (low - corner) * strides[static_cast<int>(d)];
    }
    for (std::size_t t = 0; t < to_.size(); ++t) {
      if (dims_[t] < 0) continue;
      const auto d = static_cast<std::size_t>(dims_[t]);
      const std::int64_t corner = corner_of(step, d), low = std::max(from_[d], corner);
      const std::int64_t high = std::min(from_[d] + sizes_[d], corner + cells[d] * dataset_.box[d]);
      offsets_[t] += low - from_[d];
      cut_sizes_[t] = high - low;
      cut_strides_[t] = strides[dims_[t]];
    }
    chunk.offsets = catalog_.arena->dims(offsets_);
    chunk.sizes = catalog_.arena->dims(cut_sizes_);
    chunk.strides = catalog_.arena->dims(cut_strides_);
    builder_.add_chunk(chunk);
  }

  std::int64_t corner_of(const std::vector<std::int64_t>& step, std::size_t d) const {
    return (begin_[d] + step[d]) * dataset_.box[d];
  }

  CatalogBuilder& builder_;
  const Catalog& catalog_;
  StoredViews& views_;
  const PlacedDataset& dataset_;
  std::span<const std::int64_t> from_, sizes_, to_;
  std::span<const int> dims_;
  std::vector<std::int64_t> grid_;            ///< The number of the dataset's boxes along each dimension.
  std::vector<std::int64_t> begin_, counts_;  ///< The first cell and the number of cells of the divided box.
  std::vector<std::int64_t> below_;           ///< The number of its cells that one step along a dimension passes.
  std::vector<std::int64_t> ones_ = std::vector<std::int64_t>(from_.size(), 1);
  std::vector<std::int64_t> offsets_, cut_sizes_, cut_strides_;
};

}  // namespace

std::shared_ptr<const RandomReader> StoredViews::get(const Catalog& catalog, std::uint32_t storage,
                                                     const std::shared_ptr<const RandomReader>& file) const {
  return cache_.get(storage, [&] { return make_view(view_of(storage), catalog.storages[storage].bytes, file); });
}

std::span<const std::byte> StoredViews::fill_of(std::uint32_t storage) const { return view_of(storage).data; }

const StoredView& StoredViews::view_of(std::uint32_t storage) const {
  return std::ranges::lower_bound(views_, storage, {}, &Numbered::storage)->view;
}

ElementType element_of(const Entry& entry) {
  std::optional<ElementType> element = element_type(entry.type, dtype_attribute(entry));
  if (!element) refuse_type(entry.type);
  return *std::move(element);
}

void refuse_type(const Type& type) {
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot read elements of this HDF5 type: {}", to_string(type)));
}

std::span<const std::byte> fill_of(Arena& arena, const Entry& entry, const ElementType& element) {
  if (entry.fill.empty()) return {};
  const std::span<std::byte> fill = arena.array<std::byte>(entry.fill.size());
  std::ranges::copy(entry.fill, fill.begin());
  if (element.swap) {
    const auto group = static_cast<std::size_t>(decoded_view::swapped_bytes(element.dtype));
    for (std::size_t at = 0; at + group <= fill.size(); at += group) std::ranges::reverse(fill.subspan(at, group));
  }
  return fill;
}

std::uint32_t add_constant(CatalogBuilder& builder, StoredViews& views, std::uint32_t file, std::int32_t rank,
                           DType dtype, std::span<const std::int64_t> shape, std::span<const std::byte> fill) {
  const std::int64_t bytes = checked_bytes(checked_numel(shape), dtype);
  const std::uint32_t storage = builder.add_storage({.offset = 0, .bytes = bytes, .file = file, .plain = false});
  views.add(storage, {.kind = StoredView::Kind::kConstant, .data = fill});
  return builder.add_row_major(storage, builder.catalog().arena->dims(shape), dtype, rank);
}

PlacedDataset place_dataset(Catalog& catalog, StoredViews& views, std::uint32_t file, std::int32_t rank,
                            const Entry& entry) {
  const ElementType element = element_of(entry);
  return Placer(catalog, views, file, rank, entry, element).place();
}

void append_chunks(CatalogBuilder& builder, StoredViews& views, const PlacedDataset& dataset,
                   std::span<const std::int64_t> from, std::span<const std::int64_t> sizes,
                   std::span<const std::int64_t> to, std::span<const int> dims) {
  if (!is_empty(sizes)) BoxCutter(builder, views, dataset, from, sizes, to, dims).cut();
}

void append_whole(CatalogBuilder& builder, StoredViews& views, const PlacedDataset& dataset) {
  const std::vector<std::int64_t> zeros(dataset.shape.size());
  std::vector<int> dims(dataset.shape.size());
  std::iota(dims.begin(), dims.end(), 0);
  append_chunks(builder, views, dataset, zeros, dataset.shape, zeros, dims);
}

}  // namespace shard::hdf5
