// The pure functions of sharding specs, for random_specs.py: reads one call per line and prints one result per line.
//
//   chunk DIM N RANK... DIMS SIZE...           ChunkShardingSpec's shards: "0,0/2,3@1 2,0/1,3@0"
//   infer N DIMS (OFFSET... SIZE... RANK)...   "ChunkShardingSpec 0 1,0" or "EnumerableShardingSpec"
//   cover DIMS SIZE... N DIMS (OFFSET... SIZE...)...   check_no_overlap, then check_tensor: "ok"
//   place TEXT                                 RemoteDevice's text
//
// An error is "error TYPE TEXT".
#include <ATen/ATen.h>

#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/sharding_spec.h"

namespace {

using shard::ShardMetadata;
using shard::Sizes;

std::int64_t number(std::istream& in) {
  std::int64_t value = 0;
  in >> value;
  return value;
}

Sizes numbers(std::istream& in, std::int64_t count) {
  Sizes all;
  for (; count > 0; --count) all.push_back(number(in));
  return all;
}

std::vector<ShardMetadata> shards(std::istream& in, bool have_ranks) {
  std::vector<ShardMetadata> all;
  const std::int64_t count = number(in), dims = number(in);
  for (std::int64_t i = 0; i < count; ++i) {
    Sizes offsets = numbers(in, dims), sizes = numbers(in, dims);
    std::optional<shard::RemoteDevice> placement;
    if (have_ranks) placement.emplace(static_cast<int>(number(in)), at::kCPU);
    all.emplace_back(std::move(offsets), std::move(sizes), placement);
  }
  return all;
}

template <class Values>
std::string joined(const Values& values) {
  std::string text;
  for (const auto& value : values) text += (text.empty() ? "" : ",") + std::to_string(value);
  return text;
}

std::vector<int> ranks_of(const std::vector<shard::RemoteDevice>& placements) {
  std::vector<int> ranks;
  for (const shard::RemoteDevice& each : placements) ranks.push_back(each.rank().value());
  return ranks;
}

std::string chunk(std::istream& in) {
  const std::int64_t dim = number(in);
  std::vector<shard::RemoteDevice> placements;
  for (const std::int64_t rank : numbers(in, number(in))) placements.emplace_back(static_cast<int>(rank), at::kCPU);
  const Sizes size = numbers(in, number(in));
  std::string text;
  for (const ShardMetadata& each : shard::chunk_spec(dim, placements)->build_metadata(size, {}).shards_metadata) {
    text += (text.empty() ? "" : " ") + joined(each.shard_offsets) + "/" + joined(each.shard_sizes) + "@" +
            std::to_string(each.placement->rank().value());
  }
  return text;
}

std::string infer(std::istream& in) {
  const shard::ShardingSpecPtr spec = shard::infer_spec(shards(in, true));
  const shard::ChunkShardingSpec* const chunk = shard::as_chunk(*spec);
  if (chunk == nullptr) return std::string(spec->class_name());
  return "ChunkShardingSpec " + std::to_string(chunk->dim()) + " " + joined(ranks_of(chunk->placements()));
}

std::string cover(std::istream& in) {
  const Sizes size = numbers(in, number(in));
  const std::vector<ShardMetadata> all = shards(in, false);
  shard::check_no_overlap(all);
  shard::check_tensor(all, size);
  return "ok";
}

std::string place(std::istream& in) {
  std::string text;
  std::getline(in >> std::ws, text);
  return shard::RemoteDevice(text).str();
}

std::string type_of(const std::exception& error) {
  if (dynamic_cast<const c10::ValueError*>(&error) != nullptr) return "ValueError";
  if (dynamic_cast<const c10::IndexError*>(&error) != nullptr) return "IndexError";
  if (dynamic_cast<const c10::TypeError*>(&error) != nullptr) return "TypeError";
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return "NotImplementedError";
  return "RuntimeError";
}

std::string answer(const std::string& line) {
  std::istringstream in(line);
  std::string verb;
  in >> verb;
  try {
    return verb == "chunk" ? chunk(in) : verb == "infer" ? infer(in) : verb == "cover" ? cover(in) : place(in);
  } catch (const std::exception& error) {
    return "error " + type_of(error) + " " + shard::message_of(error);
  }
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) std::cout << answer(line) << '\n';
}
