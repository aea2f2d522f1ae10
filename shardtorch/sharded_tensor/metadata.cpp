#include "shardtorch/sharded_tensor/metadata.h"

#include <ATen/ATen.h>
#include <c10/util/hash.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <utility>

#include "libshard/catalog/layouts/overlap.h"
#include "libshard/core/box.h"
#include "libshard/ranks/wire.h"
#include "shardtorch/errors.h"

namespace shard {

namespace {

constexpr std::string_view kHead = "ShardedTensorMetadata/1";

/// Values by their number in files.
constexpr at::MemoryFormat kMemoryFormats[] = {at::MemoryFormat::Contiguous, at::MemoryFormat::ChannelsLast,
                                               at::MemoryFormat::Preserve};

std::int64_t encode(at::MemoryFormat format) {
  const auto number = memory_format_number(format);
  SHARD_CHECK(number, "Invalid torch.memory_format: ", format);
  return *number;
}

at::MemoryFormat decode_memory_format(std::int64_t number) {
  const auto format = memory_format_of(number);
  SHARD_CHECK(format, "Invalid torch.memory_format encoding: ", number);
  return *format;
}

/// Reads an enumerator that was written as a number. `count` is one past the last.
template <class Enum>
Enum decode(std::int64_t number, Enum count, const char* what) {
  SHARD_CHECK(number >= 0 && number < static_cast<std::int64_t>(count), "Invalid ", what, " encoding: ", number);
  return static_cast<Enum>(number);
}

void write(WireWriter& out, at::IntArrayRef numbers) {
  out.number(static_cast<std::int64_t>(numbers.size()));
  for (const std::int64_t number : numbers) out.number(number);
}

std::int64_t read_count(WireReader& in) {
  const std::int64_t count = in.number();
  SHARD_CHECK(count >= 0, "a list of ", count, " items");
  return count;
}

bool read_flag(WireReader& in) {
  const std::int64_t flag = in.number();
  SHARD_CHECK(flag == 0 || flag == 1, "Invalid bool encoding: ", flag);
  return flag == 1;
}

Sizes read_sizes(WireReader& in) {
  Sizes numbers;  // Grows while numbers are read, because their count is not trusted.
  for (std::int64_t rest = read_count(in); rest > 0; --rest) numbers.push_back(in.number());
  return numbers;
}

void write(WireWriter& out, const TensorProperties& properties) {
  out.number(static_cast<std::int64_t>(properties.dtype));
  out.number(static_cast<std::int64_t>(properties.layout));
  out.number(properties.requires_grad ? 1 : 0);
  out.number(encode(properties.memory_format));
  out.number(properties.pin_memory ? 1 : 0);
}

TensorProperties read_properties(WireReader& in) {
  TensorProperties properties;
  properties.dtype = decode(in.number(), at::ScalarType::Undefined, "dtype");
  properties.layout = decode(in.number(), at::Layout::NumOptions, "layout");
  properties.requires_grad = read_flag(in);
  properties.memory_format = decode_memory_format(in.number());
  properties.pin_memory = read_flag(in);
  return properties;
}

void write(WireWriter& out, const ShardMetadata& shard) {
  write(out, shard.shard_offsets);
  write(out, shard.shard_sizes);
  out.text(shard.placement.has_value() ? shard.placement->str() : "");
}

ShardMetadata read_shard(WireReader& in) {
  Sizes offsets = read_sizes(in), sizes = read_sizes(in);
  const std::string placement = in.text();
  return {std::move(offsets), std::move(sizes),
          placement.empty() ? std::nullopt : std::optional<RemoteDevice>(placement)};
}

ShardedTensorMetadata read_metadata(WireReader& in) {
  SHARD_CHECK(in.text() == kHead, "not the metadata of a ShardedTensor");
  ShardedTensorMetadata metadata;
  metadata.size = read_sizes(in);
  metadata.tensor_properties = read_properties(in);
  for (std::int64_t rest = read_count(in); rest > 0; --rest) metadata.shards_metadata.push_back(read_shard(in));
  SHARD_CHECK(in.at_end(), "bytes follow the metadata of a ShardedTensor");
  return metadata;
}

void check_all_non_negative(at::IntArrayRef numbers, const char* message) {
  SHARD_CHECK_VALUE(std::ranges::all_of(numbers, [](std::int64_t number) { return number >= 0; }), message, ", found ",
                    to_string(numbers));
}

void check_numbers(const Sizes& offsets, const Sizes& sizes) {
  SHARD_CHECK_VALUE(offsets.size() == sizes.size(),
                    "shard_offsets and shard_sizes should have the same number of elements, found ", offsets.size(),
                    " and ", to_string(sizes), " respectively");
  check_all_non_negative(offsets, "shard_offsets should be >=0");
  check_all_non_negative(sizes, "shard_sizes should be >= 0");
}

/// The number of elements of a box. \throws c10::ValueError  it does not fit into 64 bits.
std::uint64_t volume_of(at::IntArrayRef sizes) {
  std::uint64_t volume = 0;
  SHARD_CHECK_VALUE(!c10::safe_multiplies_u64(sizes, &volume), "Volume of ", to_string(sizes), " does not fit 64 bits");
  return volume;
}

void check_inside(const ShardMetadata& shard, at::IntArrayRef size) {
  SHARD_CHECK_VALUE(shard.shard_offsets.size() == size.size(), "Rank of tensor is ", size.size(),
                    ", but shards rank is ", shard.shard_offsets.size());
  check_numbers(shard.shard_offsets, shard.shard_sizes);
  for (std::size_t d = 0; d < size.size(); ++d) {
    if (shard.shard_sizes[d] == 0) continue;  // A chunk without elements may begin past the end.
    SHARD_CHECK_VALUE(shard.shard_offsets[d] <= size[d] - shard.shard_sizes[d], "Shard offset ", shard.shard_offsets[d],
                      " and length ", shard.shard_sizes[d], " exceeds tensor dim: ", size[d], " for shard ", shard);
  }
}

}  // namespace

ShardMetadata::ShardMetadata(Sizes offsets, Sizes sizes, std::optional<RemoteDevice> where)
    : shard_offsets(std::move(offsets)), shard_sizes(std::move(sizes)), placement(std::move(where)) {
  check_numbers(shard_offsets, shard_sizes);
}

std::ostream& operator<<(std::ostream& out, const ShardMetadata& shard) {
  return out << "ShardMetadata(shard_offsets=" << to_string(shard.shard_offsets)
             << ", shard_sizes=" << to_string(shard.shard_sizes)
             << ", placement=" << (shard.placement.has_value() ? shard.placement->str() : "None") << ")";
}

TensorProperties TensorProperties::of(const at::Tensor& tensor) {
  return {.dtype = tensor.scalar_type(),
          .layout = tensor.layout(),
          .requires_grad = tensor.requires_grad(),
          .memory_format = at::MemoryFormat::Contiguous,
          .pin_memory = tensor.is_pinned()};
}

std::ostream& operator<<(std::ostream& out, const TensorProperties& properties) {
  const auto word = [](bool value) { return value ? "true" : "false"; };
  return out << "TensorProperties(dtype=" << properties.dtype << ", layout=" << properties.layout
             << ", requires_grad=" << word(properties.requires_grad) << ", memory_format=" << properties.memory_format
             << ", pin_memory=" << word(properties.pin_memory) << ")";
}

std::optional<std::int64_t> memory_format_number(at::MemoryFormat format) {
  const auto known = std::ranges::find(kMemoryFormats, format);
  return known == std::end(kMemoryFormats) ? std::nullopt : std::optional(known - std::begin(kMemoryFormats));
}

std::optional<at::MemoryFormat> memory_format_of(std::int64_t number) {
  if (number < 0 || number >= std::ssize(kMemoryFormats)) return std::nullopt;
  return kMemoryFormats[number];
}

std::ostream& operator<<(std::ostream& out, const ShardedTensorMetadata& metadata) {
  return out << "ShardedTensorMetadata(shards_metadata=[" << c10::Join(", ", metadata.shards_metadata)
             << "], size=" << to_string(metadata.size) << ", tensor_properties=" << metadata.tensor_properties << ")";
}

std::string serialize(const ShardedTensorMetadata& metadata) {
  WireWriter out;
  out.text(kHead);
  write(out, metadata.size);
  write(out, metadata.tensor_properties);
  out.number(static_cast<std::int64_t>(metadata.shards_metadata.size()));
  for (const ShardMetadata& shard : metadata.shards_metadata) write(out, shard);
  return std::string(as_text(out.take()));
}

ShardedTensorMetadata deserialize_metadata(const std::string& bytes) {
  try {
    WireReader in(std::as_bytes(std::span(bytes)));
    return read_metadata(in);
  } catch (const Error& error) {
    SHARD_CHECK(false, "the metadata of a ShardedTensor is damaged: ", error.what());
  }
}

/// Finds an overlap without comparing all pairs, see find_overlap.
void check_no_overlap(const std::vector<ShardMetadata>& shards) {
  std::vector<BoxView> boxes;
  boxes.reserve(shards.size());
  for (const ShardMetadata& shard : shards) {
    SHARD_CHECK_VALUE(shard.shard_offsets.size() == shards.front().shard_offsets.size(),
                      "Found inconsistent ranks for shards: ", shards.front().shard_offsets.size(), " and ",
                      shard.shard_offsets.size());
    boxes.push_back({shard.shard_offsets, shard.shard_sizes});
  }
  const auto pair = find_overlap(boxes);
  if (!pair.has_value()) return;
  SHARD_CHECK_VALUE(false, "Shards ", shards[pair->first], " and ", shards[pair->second], " overlap");
}

/// Shards that do not overlap cover the tensor if and only if their volumes add up to its volume.
void check_tensor(const std::vector<ShardMetadata>& shards, at::IntArrayRef size) {
  check_all_non_negative(size, "the size of a tensor should be >= 0");
  const std::uint64_t volume = volume_of(size);
  std::uint64_t covered = 0;
  for (const ShardMetadata& shard : shards) {
    check_inside(shard, size);
    SHARD_CHECK_VALUE(!c10::add_overflows(covered, volume_of(shard.shard_sizes), &covered),
                      "Total volume of shards does not fit 64 bits");
  }
  SHARD_CHECK_VALUE(covered == volume, "Total volume of shards: ", covered, " does not match tensor volume: ", volume,
                    ", in other words all the individual shards do not cover the entire tensor");
}

}  // namespace shard

std::size_t std::hash<shard::ShardMetadata>::operator()(const shard::ShardMetadata& shard) const noexcept {
  std::size_t seed = std::hash<std::optional<shard::RemoteDevice>>()(shard.placement);
  for (const shard::Sizes* numbers : {&shard.shard_offsets, &shard.shard_sizes}) {
    for (const std::int64_t number : *numbers) seed = c10::hash_combine(seed, static_cast<std::size_t>(number));
  }
  return seed;
}
