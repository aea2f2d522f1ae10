#include "formats/hdf5/parser/dataset.h"

#include <algorithm>
#include <array>

#include "formats/hdf5/parser/chunk_places.h"
#include "formats/hdf5/parser/contents.h"
#include "formats/hdf5/parser/lzf_filter.h"
#include "formats/hdf5/parser/virtual_mappings.h"

namespace shard::hdf5 {

namespace {

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

/// Empty where it is zeros, or where the file has none.
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
  if (entry.stored_bytes == 0) return;  // H5Dget_offset adds the user block to "nowhere" as well.
  const haddr_t offset = H5Dget_offset(dataset);
  if (offset == HADDR_UNDEF) throw_library_error();
  entry.offset = signed_of(offset);
}

void describe_chunked(const WholeFile& file, hid_t dataset, hid_t properties, Entry& entry) {
  std::vector<hsize_t> dims(entry.space.shape.size());
  const int rank = checked(H5Pget_chunk(properties, static_cast<int>(dims.size()), dims.data()));
  if (rank != static_cast<int>(dims.size())) throw_malformed("its chunks are of another rank than the dataset");
  std::ranges::transform(dims, std::back_inserter(entry.chunk_shape), signed_of);
  if (std::ranges::find(entry.chunk_shape, 0) != entry.chunk_shape.end()) throw_malformed("its chunks are empty");
  find_chunks({dataset, properties, file.channel.file_bytes(), file.facts.user_block_bytes}, entry);
}

void describe_storage(const WholeFile& file, hid_t dataset, hid_t properties, Entry& entry, Kept& kept) {
  switch (entry.storage) {
    case StorageKind::kCompact:
      if (is_plain(entry.type)) entry.compact = read_elements(dataset, entry.space, kept);
      return;
    case StorageKind::kContiguous:
      return describe_contiguous(dataset, entry);
    case StorageKind::kChunked:
      return describe_chunked(file, dataset, properties, entry);
    case StorageKind::kVirtual:
      entry.mappings = read_mappings(properties, kept);
  }
}

}  // namespace

void describe_dataset(const WholeFile& file, hid_t dataset, Entry& entry, Kept& kept) {
  const TypeHandle type(H5Dget_type(dataset));
  const SpaceHandle space(H5Dget_space(dataset));
  const PropertiesHandle properties(H5Dget_create_plist(dataset));
  entry.type = describe_type(type.get());
  entry.space = describe_space(space.get());
  entry.storage = storage_of(properties.get());
  if (checked(H5Pget_external_count(properties.get())) > 0) {
    throw_unsupported("its elements lie in other files (external storage), which is not supported");
  }
  std::vector<Filter> filters = filters_of(properties.get(), entry.type);
  if (entry.type.kind == TypeClass::kString) {
    if (entry.storage == StorageKind::kVirtual) throw_unsupported("virtual datasets of strings are not supported");
    entry.strings = read_strings(dataset, entry.space, kept);
    return;
  }
  if (entry.storage == StorageKind::kChunked) entry.filters = std::move(filters);
  entry.fill = fill_of(properties.get(), type.get(), entry.type);
  describe_storage(file, dataset, properties.get(), entry, kept);
}

}  // namespace shard::hdf5
