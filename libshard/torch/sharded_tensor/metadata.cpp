#include "libshard/torch/sharded_tensor/metadata.h"

#include <ATen/ATen.h>
#include <c10/util/hash.h>
#include <c10/util/safe_numerics.h>

#include <algorithm>
#include <utility>

#include "libshard/core/box.h"
#include "libshard/dist/wire.h"

namespace shard {

namespace {

constexpr std::string_view kHead = "ShardedTensorMetadata/1";

constexpr std::pair<at::MemoryFormat, std::int64_t> kMemoryFormats[] = {
    {at::MemoryFormat::Contiguous, 0}, {at::MemoryFormat::ChannelsLast, 1}, {at::MemoryFormat::Preserve, 2}};

std::int64_t encode(at::MemoryFormat format) {
  for (const auto& [known, code] : kMemoryFormats) {
    if (known == format) return code;
  }
  TORCH_CHECK(false, "Invalid torch.memory_format: ", format);
}

at::MemoryFormat decode_memory_format(std::int64_t code) {
  for (const auto& [format, known] : kMemoryFormats) {
    if (known == code) return format;
  }
  TORCH_CHECK(false, "Invalid torch.memory_format encoding: ", code);
}

/// An enumerator that was written as its number; `count` is one past the last.
template <class Enum>
Enum decode(std::int64_t number, Enum count, const char* what) {
  TORCH_CHECK(number >= 0 && number < static_cast<std::int64_t>(count), "Invalid ", what, " encoding: ", number);
  return static_cast<Enum>(number);
}

void write(WireWriter& out, at::IntArrayRef numbers) {
  out.number(static_cast<std::int64_t>(numbers.size()));
  for (const std::int64_t number : numbers) out.number(number);
}

Sizes read_sizes(WireReader& in) {
  Sizes numbers;  // Grows as numbers come: their count is not trusted.
  for (std::int64_t rest = in.number(); rest > 0; --rest) numbers.push_back(in.number());
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
  properties.dtype = decode(in.number(), at::ScalarType::NumOptions, "dtype");
  properties.layout = decode(in.number(), at::Layout::NumOptions, "layout");
  properties.requires_grad = in.number() != 0;
  properties.memory_format = decode_memory_format(in.number());
  properties.pin_memory = in.number() != 0;
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
  TORCH_CHECK(in.text() == kHead, "not the metadata of a ShardedTensor");
  ShardedTensorMetadata metadata;
  metadata.size = read_sizes(in);
  metadata.tensor_properties = read_properties(in);
  for (std::int64_t rest = in.number(); rest > 0; --rest) metadata.shards_metadata.push_back(read_shard(in));
  TORCH_CHECK(in.at_end(), "bytes follow the metadata of a ShardedTensor");
  return metadata;
}

void check_all_non_negative(const Sizes& numbers, const char* message) {
  TORCH_CHECK_VALUE(std::ranges::all_of(numbers, [](std::int64_t number) { return number >= 0; }), message);
}

/// Elements of a box. \throws c10::ValueError  they do not fit 64 bits.
std::uint64_t volume_of(at::IntArrayRef sizes) {
  std::uint64_t volume = 0;
  TORCH_CHECK_VALUE(!c10::safe_multiplies_u64(sizes, &volume), "Volume of ", to_string(sizes), " does not fit 64 bits");
  return volume;
}

void check_inside(const ShardMetadata& shard, at::IntArrayRef size) {
  TORCH_CHECK_VALUE(shard.shard_offsets.size() == size.size(), "Rank of tensor is ", size.size(),
                    ", but shards rank is ", shard.shard_offsets.size());
  for (std::size_t d = 0; d < size.size(); ++d) {
    if (shard.shard_sizes[d] == 0) continue;  // A chunk without elements may begin past the end.
    TORCH_CHECK_VALUE(shard.shard_offsets[d] <= size[d] - shard.shard_sizes[d], "Shard offset ", shard.shard_offsets[d],
                      " and length ", shard.shard_sizes[d], " exceeds tensor dim: ", size[d], " for shard ", shard);
  }
}

}  // namespace

ShardMetadata::ShardMetadata(Sizes offsets, Sizes sizes, std::optional<RemoteDevice> where)
    : shard_offsets(std::move(offsets)), shard_sizes(std::move(sizes)), placement(std::move(where)) {
  TORCH_CHECK_VALUE(shard_offsets.size() == shard_sizes.size(),
                    "shard_offsets and shard_sizes should have the same number of elements, found ",
                    shard_offsets.size(), " and ", to_string(shard_sizes), " respectively");
  check_all_non_negative(shard_offsets, "shard_offsets should be >=0");
  check_all_non_negative(shard_sizes, "shard_sizes should be >= 0");
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

std::ostream& operator<<(std::ostream& out, const ShardedTensorMetadata& metadata) {
  out << "ShardedTensorMetadata(shards_metadata=[";
  const char* separator = "";
  for (const ShardMetadata& shard : metadata.shards_metadata) out << std::exchange(separator, ", ") << shard;
  return out << "], size=" << to_string(metadata.size) << ", tensor_properties=" << metadata.tensor_properties << ")";
}

std::string serialize(const ShardedTensorMetadata& metadata) {
  WireWriter out;
  out.text(kHead);
  write(out, metadata.size);
  write(out, metadata.tensor_properties);
  out.number(static_cast<std::int64_t>(metadata.shards_metadata.size()));
  for (const ShardMetadata& shard : metadata.shards_metadata) write(out, shard);
  const Bytes bytes = out.take();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

ShardedTensorMetadata deserialize_metadata(const std::string& bytes) {
  try {
    WireReader in(std::as_bytes(std::span(bytes)));
    return read_metadata(in);
  } catch (const Error& error) {
    TORCH_CHECK(false, "the metadata of a ShardedTensor is damaged: ", error.what());
  }
}

void check_tensor(const std::vector<ShardMetadata>& shards, at::IntArrayRef size) {
  const std::uint64_t volume = volume_of(size);
  std::uint64_t covered = 0;
  for (const ShardMetadata& shard : shards) {
    check_inside(shard, size);
    TORCH_CHECK_VALUE(!c10::add_overflows(covered, volume_of(shard.shard_sizes), &covered),
                      "Total volume of shards does not fit 64 bits");
  }
  TORCH_CHECK_VALUE(covered == volume, "Total volume of shards: ", covered, " does not match tensor volume: ", volume,
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
