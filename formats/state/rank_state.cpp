#include "formats/state/rank_state.h"

#include <utility>

#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/ranks/wire.h"

namespace shard::checkpoint {

namespace {

void write_numbers(WireWriter& out, std::span<const std::int64_t> numbers) {
  for (const std::int64_t number : numbers) out.number(number);
}

std::vector<std::int64_t> read_numbers(WireReader& in, std::int64_t count) {
  std::vector<std::int64_t> numbers;
  for (; count > 0; --count) numbers.push_back(in.number());
  return numbers;
}

/// \throws Error kPeer  it is not in 0 ... most.
std::int64_t read_count(WireReader& in, std::int64_t most) {
  const std::int64_t count = in.number();
  if (count >= 0 && count <= most) return count;
  throw Error(ErrorCode::kPeer, "a rank sent a malformed description of its state").found(count);
}

void write_sharding(WireWriter& out, const std::optional<Sharding>& sharding) {
  out.number(sharding.has_value());
  if (!sharding) return;
  out.number(std::ssize(sharding->mesh));
  for (std::size_t axis = 0; axis < sharding->mesh.size(); ++axis) {
    out.text(sharding->mesh[axis].name);
    out.number(sharding->mesh[axis].size);
    out.number(sharding->placements[axis].kind);
    out.number(sharding->placements[axis].dim);
    out.number(sharding->placements[axis].split_factor);
  }
  out.number(std::ssize(sharding->ranks));
  write_numbers(out, sharding->ranks);
}

std::optional<Sharding> read_sharding(WireReader& in) {
  if (in.number() == 0) return std::nullopt;
  Sharding sharding;
  for (std::int64_t axes = in.number(); axes > 0; --axes) {
    std::string name = in.text();
    const std::int64_t size = in.number();
    sharding.mesh.push_back({std::move(name), size});
    const auto kind = static_cast<Placement::Kind>(read_count(in, Placement::kStridedShard));
    const auto dim = static_cast<int>(read_count(in, kMaxDims));
    sharding.placements.push_back({kind, dim, in.number()});
  }
  sharding.ranks = read_numbers(in, in.number());
  return sharding;
}

void write_info(WireWriter& out, const TensorInfo& info) {
  out.number(static_cast<std::int64_t>(info.dtype));
  out.number(info.requires_grad);
  out.number(info.is_sharded);
  out.text(info.location);
  out.number(std::ssize(info.shape));
  write_numbers(out, info.shape);
  write_sharding(out, info.sharding);
  out.number(std::ssize(info.boxes));
  for (const HeldBox& box : info.boxes) {
    write_numbers(out, box.offsets);
    write_numbers(out, box.sizes);
  }
}

TensorInfo read_info(WireReader& in) {
  TensorInfo info;
  info.dtype = static_cast<DType>(read_count(in, kDTypeCount - 1));
  info.requires_grad = in.number() != 0;
  info.is_sharded = in.number() != 0;
  info.location = in.text();
  const std::int64_t dims = read_count(in, kMaxDims);
  info.shape = read_numbers(in, dims);
  info.sharding = read_sharding(in);
  for (std::int64_t boxes = in.number(); boxes > 0; --boxes) {
    std::vector<std::int64_t> offsets = read_numbers(in, dims), sizes = read_numbers(in, dims);
    info.boxes.push_back({std::move(offsets), std::move(sizes)});
  }
  return info;
}

}  // namespace

bool are_dtensors(const std::vector<RankState>& ranks) {
  bool is_any = false;
  for (const RankState& rank : ranks) {
    for (const TensorInfo& tensor : rank.tensors) {
      if (tensor.is_sharded && !tensor.sharding) return false;
      is_any = is_any || tensor.is_sharded;
    }
  }
  return is_any;
}

Bytes to_bytes(const RankState& state) {
  WireWriter out;
  out.text(state.tree);
  out.number(std::ssize(state.tensors));
  for (const TensorInfo& info : state.tensors) write_info(out, info);
  return out.take();
}

RankState rank_state(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  RankState state;
  state.tree = in.text();
  for (std::int64_t tensors = in.number(); tensors > 0; --tensors) state.tensors.push_back(read_info(in));
  return state;
}

}  // namespace shard::checkpoint
