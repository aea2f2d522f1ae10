#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <span>
#include <string>

#include "formats/hdf5/described.h"
#include "formats/hdf5/library/handle.h"
#include "formats/hdf5/parser/describe.h"
#include "formats/parts/decoded_view/lzf_stream.h"
#include "libshard/core/box.h"

namespace shard::hdf5 {

namespace {

// The boxes of other datasets of which a virtual one consists.

struct Run {
  std::int64_t at = 0, length = 0;
};

/// The indices that a selection takes in one dimension, as runs.
using Runs = std::vector<Run>;

/// The positions that a regular selection takes in each dimension.
using Selected = std::vector<Runs>;

std::int64_t length_of(const Runs& runs) {
  std::int64_t length = 0;
  for (const Run& run : runs) length += run.length;
  return length;
}

Runs runs_of(hsize_t start, hsize_t stride, hsize_t count, hsize_t block, EntryArena& arena) {
  if (count == H5S_UNLIMITED || block == H5S_UNLIMITED) {
    throw_unsupported("virtual datasets of unlimited size are not supported");
  }
  if (count == 1 || stride == block) {
    return {{signed_of(start), signed_of(count == 1 ? block : count * block)}};
  }
  arena.room(signed_of(count), sizeof(Run));  // Counted, so that a stride over a huge shape is limited.
  Runs runs;
  for (hsize_t i = 0; i < count; ++i) runs.push_back({signed_of(start + i * stride), signed_of(block)});
  return runs;
}

Selected whole(std::span<const std::int64_t> shape) {
  Selected result;
  for (const std::int64_t size : shape) result.push_back({{0, size}});
  return result;
}

std::vector<std::int64_t> shape_of(const Selected& selected) {
  std::vector<std::int64_t> shape;
  for (const Runs& runs : selected) shape.push_back(length_of(runs));
  return shape;
}

Selected hyperslab(hid_t space, std::size_t rank, EntryArena& arena) {
  if (checked(H5Sis_regular_hyperslab(space)) == 0) {
    throw_unsupported("virtual datasets of irregular selections are not supported");
  }
  std::vector<hsize_t> start(rank), stride(rank), count(rank), block(rank);
  checked(H5Sget_regular_hyperslab(space, start.data(), stride.data(), count.data(), block.data()));
  Selected result;
  for (std::size_t i = 0; i < rank; ++i) result.push_back(runs_of(start[i], stride[i], count[i], block[i], arena));
  return result;
}

Selected selected(hid_t space, EntryArena& arena) {
  const Space extent = describe_space(space);
  switch (checked(H5Sget_select_type(space))) {
    case H5S_SEL_ALL:
      return whole(extent.shape);
    case H5S_SEL_HYPERSLABS:
      return hyperslab(space, extent.shape.size(), arena);
    default:
      throw_unsupported("virtual datasets of selections of points are not supported");
  }
}

/// The selection in the source. If it is the whole source, the file need not contain the source's shape, and the source
/// may read as a scalar. Its shape is then that of the selection in the virtual dataset.
Selected source_of(hid_t space, const Selected& to, EntryArena& arena) {
  const bool is_all = checked(H5Sget_select_type(space)) == H5S_SEL_ALL;
  const std::vector<std::int64_t> shape = shape_of(to);
  const Space extent = describe_space(space);
  const bool fits = !extent.shape.empty() && elements_of(extent) == elements_of({SpaceKind::kSimple, shape});
  return is_all && !fits ? whole(shape) : selected(space, arena);
}

/// Divides the runs of both sides wherever either ends.
std::vector<std::pair<Run, Run>> joined(const Runs& runs, const Runs& sources) {
  std::vector<std::pair<Run, Run>> result;
  std::size_t i = 0, j = 0;
  Run run, source;
  while (true) {
    if (run.length == 0 && i < runs.size()) run = runs[i++];
    if (source.length == 0 && j < sources.size()) source = sources[j++];
    const std::int64_t length = std::min(run.length, source.length);
    if (length == 0) return result;
    result.push_back({{run.at, length}, {source.at, length}});
    run = {run.at + length, run.length - length};
    source = {source.at + length, source.length - length};
  }
}

/// For each dimension of a virtual dataset the one of its source, or none: dimensions of size 1 need no partner.
constexpr std::size_t kNone = ~std::size_t{0};

std::vector<std::size_t> partners(const Selected& to, const Selected& from) {
  std::vector<std::size_t> result(to.size(), kNone);
  std::size_t next = 0;
  for (std::size_t i = 0; i < to.size(); ++i) {
    const std::int64_t length = length_of(to[i]);
    std::size_t at = next;
    while (at < from.size() && length_of(from[at]) != length && length_of(from[at]) == 1) ++at;
    const bool fits = at < from.size() && length_of(from[at]) == length;
    if (!fits && length != 1) throw_unsupported("virtual datasets over parts of a different shape are not supported");
    if (!fits) continue;
    result[i] = at;
    next = at + 1;
  }
  return result;
}

/// Makes a box from every combination of one pair of runs per dimension.
class BoxMaker {
 public:
  BoxMaker(const Selected& to, const Selected& from, EntryArena& arena)
      : to_(to), from_(from), partners_(partners(to, from)) {
    std::vector<bool> is_taken(from.size());
    std::int64_t boxes = 1;
    for (std::size_t i = 0; i < to.size(); ++i) {
      const Runs single{{0, 1}};
      if (partners_[i] != kNone) is_taken[partners_[i]] = true;
      pairs_.push_back(joined(to[i], partners_[i] == kNone ? single : from[partners_[i]]));
      if (__builtin_mul_overflow(boxes, static_cast<std::int64_t>(pairs_.back().size()), &boxes)) boxes = -1;
    }
    for (std::size_t j = 0; j < is_taken.size(); ++j) {
      if (!is_taken[j] && length_of(from[j]) != 1) {
        throw_unsupported("virtual datasets over parts of a different shape are not supported");
      }
    }
    arena.room(std::max<std::int64_t>(boxes, 0), static_cast<std::int64_t>(sizeof(VirtualBox) + 32 * rank()));
  }

  std::vector<VirtualBox> boxes() {
    std::vector<VirtualBox> result;
    if (std::ranges::any_of(pairs_, [](const auto& each) { return each.empty(); })) return result;
    std::vector<std::size_t> at(pairs_.size()), counts;
    for (const auto& each : pairs_) counts.push_back(each.size());
    do result.push_back(box(at));
    while (next_index(std::span(at), std::span<const std::size_t>(counts)) >= 0);
    return result;
  }

 private:
  std::size_t rank() const { return to_.size() + from_.size(); }

  VirtualBox box(const std::vector<std::size_t>& at) const {
    VirtualBox box;
    for (const Runs& runs : from_) {
      box.source_offsets.push_back(runs.empty() ? 0 : runs[0].at);
      box.source_sizes.push_back(1);
    }
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto& [run, source] = pairs_[i][at[i]];
      box.offsets.push_back(run.at);
      box.sizes.push_back(run.length);
      if (partners_[i] == kNone) continue;
      box.source_offsets[partners_[i]] = source.at;
      box.source_sizes[partners_[i]] = source.length;
    }
    return box;
  }

  const Selected &to_, &from_;
  std::vector<std::size_t> partners_;
  std::vector<std::vector<std::pair<Run, Run>>> pairs_;
};

/// The name of a source without its escapes: "%b" is the number of a block, "%%" is '%'.
std::string_view without_escapes(std::string name, EntryArena& arena) {
  for (std::size_t at = name.find('%'); at != name.npos; at = name.find('%', at + 1)) {
    if (name.substr(at, 2) != "%%") throw_unsupported("virtual datasets over numbered sources are not supported");
    name.erase(at, 1);
  }
  return arena.text(name);
}

template <ssize_t (*Get)(hid_t, size_t, char*, size_t)>
std::string name_of(hid_t properties, std::size_t index) {
  const auto bytes = static_cast<std::size_t>(checked(Get(properties, index, nullptr, 0)));
  std::string name(bytes + 1, '\0');
  checked(Get(properties, index, name.data(), name.size()));
  name.resize(bytes);
  return name;
}

/// \throws LibraryError  mappings that are not boxes: unlimited, of single points, of different shapes
std::vector<VirtualMapping> read_mappings(hid_t properties, EntryArena& arena) {
  size_t count = 0;
  checked(H5Pget_virtual_count(properties, &count));
  std::vector<VirtualMapping> result;
  for (size_t i = 0; i < count; ++i) {
    const SpaceHandle space(H5Pget_virtual_vspace(properties, i)), source(H5Pget_virtual_srcspace(properties, i));
    const Selected to = selected(space.get(), arena), from = source_of(source.get(), to, arena);
    VirtualMapping mapping;
    mapping.file = without_escapes(name_of<H5Pget_virtual_filename>(properties, i), arena);
    mapping.dataset = without_escapes(name_of<H5Pget_virtual_dsetname>(properties, i), arena);
    mapping.boxes = BoxMaker(to, from, arena).boxes();
    result.push_back(std::move(mapping));
  }
  return result;
}

// Offsets of the chunks of a dataset.

struct ChunkedLayout {
  hid_t dataset, properties;  ///< Open identifiers.
  std::int64_t file_bytes = 0, base_offset = 0;
};

constexpr std::uint32_t kAllFilters = ~std::uint32_t{0};

/// The index of chunks, read from printed text. H5Dget_chunk_info of libhdf5 1.10 walks the index from its start for
/// each chunk. Only H5Ddebug walks it once, and it prints to stdout. This class replaces stdout and parses lines of the
/// form
///
///     0x00000000      256       4016 [0, 8, 0]
///
/// which contain: skipped filters, stored bytes, address, and the first element with an additional zero for the bytes
/// of elements.
class PrintedIndex {
 public:
  PrintedIndex(const Entry& entry, std::int64_t base_offset, bool partial_are_bare)
      : entry_(entry), base_offset_(base_offset), partial_are_bare_(partial_are_bare) {
    cookie_io_functions_t functions{};
    functions.write = [](void* self, const char* text, std::size_t bytes) noexcept {
      static_cast<PrintedIndex*>(self)->take({text, bytes});
      return static_cast<ssize_t>(bytes);
    };
    stream_ = fopencookie(this, "w", functions);
    if (stream_ == nullptr) throw std::bad_alloc();
    std::swap(stream_, stdout);
  }
  ~PrintedIndex() {
    std::swap(stream_, stdout);
    fclose(stream_);
  }
  PrintedIndex(const PrintedIndex&) = delete;
  PrintedIndex& operator=(const PrintedIndex&) = delete;

  std::vector<ChunkPlace> finish() {
    fflush(stdout);
    if (is_broken_) throw_malformed("an offset in an index of chunks has more than 63 bits");
    return std::move(chunks_);
  }

 private:
  void take(std::string_view text) {
    while (!text.empty()) {
      const std::size_t end = text.find('\n');
      line_.append(text.substr(0, end));
      if (end == text.npos) return;
      take_line();
      line_.clear();
      text.remove_prefix(end + 1);
    }
  }

  void take_line() {
    const char* at = line_.c_str() + std::min(line_.find_first_not_of(' '), line_.size());
    if (!std::string_view(at).starts_with("0x")) return;  // A line about the index as a whole, or the table's head.
    const auto number = [&](int base) {
      char* end = nullptr;
      const unsigned long long value = std::strtoull(at, &end, base);
      while (*end == ' ' || *end == ',' || *end == '[') ++end;
      at = end;
      return value;
    };
    ChunkPlace chunk;
    chunk.skipped = static_cast<std::uint32_t>(number(16));
    chunk.bytes = static_cast<std::uint32_t>(number(10));
    const unsigned long long address = number(10);
    is_broken_ |= __builtin_add_overflow(address, base_offset_, &chunk.offset);
    bool is_partial = false;
    for (std::size_t i = 0; i < entry_.space.shape.size(); ++i) {
      const auto first = static_cast<std::int64_t>(number(10));
      if (first < 0 || first >= entry_.space.shape[i]) return;  // A chunk that remains from a larger shape.
      const std::int64_t size = entry_.chunk_shape[i], shape = entry_.space.shape[i];
      chunk.number = chunk.number * boxes_along(shape, size) + first / size;
      is_partial |= first > shape - size;
    }
    if (is_partial && partial_are_bare_) chunk.skipped = kAllFilters;
    chunks_.push_back(chunk);
  }

  const Entry& entry_;
  std::int64_t base_offset_;
  bool partial_are_bare_;  ///< Chunks that extend past the dataset's end are stored without filters.
  FILE* stream_ = nullptr;
  std::string line_;
  std::vector<ChunkPlace> chunks_;
  bool is_broken_ = false;
};

std::int64_t positions_of(const Entry& entry) {
  Space grid{SpaceKind::kSimple, {}};
  for (std::size_t i = 0; i < entry.chunk_shape.size(); ++i) {
    grid.shape.push_back(boxes_along(entry.space.shape[i], entry.chunk_shape[i]));
  }
  return elements_of(grid);
}

/// Checks that the chunks are in the file. An implicit index lists every position of the grid without storing anything.
void check_implicit(const ChunkedLayout& layout, const Entry& entry) {
  H5D_chunk_index_t kind{};
  checked(H5Dget_chunk_index_type(layout.dataset, &kind));
  const std::int64_t chunk_bytes = elements_of({SpaceKind::kSimple, entry.chunk_shape}) * entry.type.bytes;
  if (kind == H5D_CHUNK_IDX_NONE && positions_of(entry) > layout.file_bytes / std::max<std::int64_t>(1, chunk_bytes)) {
    throw_malformed("it has more chunks than fit in the file");
  }
}

/// True if there is an index. The lookup fails if the first chunk is not in it, so that error is ignored.
bool has_index(const ChunkedLayout& layout, const Entry& entry) {
  const std::vector<hsize_t> first(entry.space.shape.size());
  hsize_t bytes = 0;
  const bool is_answered = H5Dget_chunk_storage_size(layout.dataset, first.data(), &bytes) >= 0;
  H5Eclear2(H5E_DEFAULT);
  return !is_answered || bytes > 0;
}

std::vector<ChunkPlace> list_chunks(const ChunkedLayout& layout, const Entry& entry) {
  unsigned options = 0;
  checked(H5Pget_chunk_opts(layout.properties, &options));
  PrintedIndex printed(entry, layout.base_offset, (options & H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS) != 0);
  checked(H5Ddebug(layout.dataset));
  if (H5Eget_num(H5E_DEFAULT) > 0) throw_library_error();  // H5Ddebug itself ignores failures.
  return printed.finish();
}

/// Fills `entry.chunks`, by number. \pre type, shape, chunk shape and filters are set
/// Cost: one walk over the index of chunks, of any kind.
void find_chunks(const ChunkedLayout& layout, Entry& entry) {
  if (elements_of(entry.space) == 0) return;
  check_implicit(layout, entry);
  if (!has_index(layout, entry)) return;
  entry.chunks = list_chunks(layout, entry);
  std::ranges::sort(entry.chunks, {}, &ChunkPlace::number);
  const auto twice = std::ranges::adjacent_find(entry.chunks, {}, &ChunkPlace::number);
  if (twice != entry.chunks.end()) throw_malformed("its index lists a chunk twice");
}

constexpr H5Z_filter_t kLzfFilter = 32000;  // Its number at the HDF Group.

/// Decodes a chunk of the filter lzf. Parameter 2 is its size, which limits the output. \returns the bytes in
/// `*buffer`; 0 if it failed
std::size_t decode(unsigned flags, std::size_t parameter_count, const unsigned* parameters, std::size_t bytes,
                   std::size_t* room, void** buffer) noexcept {
  constexpr std::size_t kChunkBytes = 2;
  if ((flags & H5Z_FLAG_REVERSE) == 0 || parameter_count <= kChunkBytes) return 0;
  const std::size_t most = std::max<std::size_t>(parameters[kChunkBytes], 1);
  auto* const out = static_cast<std::byte*>(H5allocate_memory(most, false));
  if (out == nullptr) return 0;
  decoded_view::LzfStream stream;
  std::span<const std::byte> in(static_cast<const std::byte*>(*buffer), bytes);
  const std::optional<std::size_t> made = stream.decode(in, std::span(out, most));
  if (!made || !in.empty() || !stream.may_end()) {
    H5free_memory(out);
    return 0;
  }
  H5free_memory(*buffer);
  *buffer = out;
  *room = most;
  return *made;
}

StorageKind storage_of(hid_t properties) {
  switch (checked(H5Pget_layout(properties))) {
    case H5D_COMPACT:
      return StorageKind::kCompact;
    case H5D_CONTIGUOUS:
      return StorageKind::kContiguous;
    case H5D_CHUNKED:
      return StorageKind::kChunked;
    case H5D_VIRTUAL:
      return StorageKind::kVirtual;
    default:
      throw_unsupported("a layout of an unknown kind");
  }
}

[[noreturn]] void throw_filter(H5Z_filter_t id, std::string name) {
  constexpr std::array<std::pair<H5Z_filter_t, const char*>, 3> kNames{
      {{H5Z_FILTER_SZIP, "szip"}, {H5Z_FILTER_NBIT, "nbit"}, {H5Z_FILTER_SCALEOFFSET, "scaleoffset"}}};
  for (const auto& [known, text] : kNames) {
    if (id == known) name = text;
  }
  throw_unsupported("the filter '" + name + "' (number " + std::to_string(id) + ") is not supported");
}

Filter filter_at(hid_t properties, unsigned index, const Type& type) {
  unsigned flags = 0, config = 0, parameters[8] = {};
  size_t count = std::size(parameters);
  char name[64] = {};
  const H5Z_filter_t id =
      checked(H5Pget_filter2(properties, index, &flags, &count, parameters, sizeof name - 1, name, &config));
  switch (id) {
    case H5Z_FILTER_DEFLATE:
      return {FilterKind::kDeflate};
    case H5Z_FILTER_SHUFFLE:
      return {FilterKind::kShuffle, count == 0 ? type.bytes : parameters[0]};
    case H5Z_FILTER_FLETCHER32:
      return {FilterKind::kFletcher32};
    case kLzfFilter:
      return {FilterKind::kLzf};
    default:
      throw_filter(id, name);
  }
}

std::vector<Filter> filters_of(hid_t properties, const Type& type) {
  const int count = checked(H5Pget_nfilters(properties));
  std::vector<Filter> result;
  for (int i = 0; i < count; ++i) result.push_back(filter_at(properties, static_cast<unsigned>(i), type));
  return result;
}

/// Empty if it is zero, or if the file has none.
std::vector<std::byte> fill_of(hid_t properties, hid_t type, const Type& described) {
  H5D_fill_value_t kind{};
  checked(H5Pfill_value_defined(properties, &kind));
  if (kind != H5D_FILL_VALUE_USER_DEFINED || !is_plain(described)) return {};
  std::vector<std::byte> fill(described.bytes);
  checked(H5Pget_fill_value(properties, type, fill.data()));
  const bool is_zero = std::ranges::all_of(fill, [](std::byte each) { return each == std::byte{0}; });
  return is_zero ? std::vector<std::byte>() : fill;
}

void describe_contiguous(hid_t dataset, Entry& entry) {
  entry.stored_bytes = signed_of(H5Dget_storage_size(dataset));
  if (entry.stored_bytes == 0) return;  // H5Dget_offset adds the user block even to an undefined address.
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) throw_library_error();
  entry.offset = signed_of(offset);
}

void describe_chunked(const WholeFile& file, hid_t dataset, hid_t properties, Entry& entry) {
  std::vector<hsize_t> dims(entry.space.shape.size());
  const int rank = checked(H5Pget_chunk(properties, static_cast<int>(dims.size()), dims.data()));
  if (rank != static_cast<int>(dims.size())) throw_malformed("its chunks and the dataset have different ranks");
  std::ranges::transform(dims, std::back_inserter(entry.chunk_shape), signed_of);
  if (std::ranges::find(entry.chunk_shape, 0) != entry.chunk_shape.end()) throw_malformed("its chunks are empty");
  find_chunks({dataset, properties, file.channel.file_bytes(), file.facts.user_block_bytes}, entry);
}

void describe_storage(const WholeFile& file, hid_t dataset, hid_t properties, Entry& entry, EntryArena& arena) {
  switch (entry.storage) {
    case StorageKind::kCompact:
      if (is_plain(entry.type)) entry.compact = read_elements(dataset, entry.space, arena);
      return;
    case StorageKind::kContiguous:
      return describe_contiguous(dataset, entry);
    case StorageKind::kChunked:
      return describe_chunked(file, dataset, properties, entry);
    case StorageKind::kVirtual:
      entry.mappings = read_mappings(properties, arena);
  }
}

}  // namespace

void describe_dataset(const WholeFile& file, hid_t dataset, Entry& entry, EntryArena& arena) {
  const TypeHandle type(H5Dget_type(dataset));
  const SpaceHandle space(H5Dget_space(dataset));
  const PropertiesHandle properties(H5Dget_create_plist(dataset));
  entry.type = describe_type(type.get());
  entry.space = describe_space(space.get());
  entry.storage = storage_of(properties.get());
  if (checked(H5Pget_external_count(properties.get())) > 0) {
    throw_unsupported("its elements are in other files (external storage), which is not supported");
  }
  std::vector<Filter> filters = filters_of(properties.get(), entry.type);
  if (entry.type.kind == TypeClass::kString) {
    if (entry.storage == StorageKind::kVirtual) throw_unsupported("virtual datasets of strings are not supported");
    entry.strings = read_strings(dataset, entry.space, arena);
    return;
  }
  if (entry.storage == StorageKind::kChunked) entry.filters = std::move(filters);
  entry.fill = fill_of(properties.get(), type.get(), entry.type);
  describe_storage(file, dataset, properties.get(), entry, arena);
}

void register_lzf_filter() {
  static const H5Z_class2_t kFilter{H5Z_CLASS_T_VERS, kLzfFilter, 0, 1, "lzf", nullptr, nullptr, decode};
  checked(H5Zregister(&kFilter));
}

}  // namespace shard::hdf5
