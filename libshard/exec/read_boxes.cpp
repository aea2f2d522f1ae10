#include "libshard/exec/read_boxes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <vector>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/exec/cast.h"
#include "libshard/exec/execute.h"
#include "libshard/io/file_writer.h"
#include "libshard/plan/plan.h"

namespace shard {

namespace {

constexpr std::int64_t kLeastForThreads = 4 << 20;  // Fewer bytes are read faster by one thread.
constexpr std::int64_t kLeastBuffers = 1 << 20;     // See PlanOptions::max_memory_bytes.
constexpr std::int64_t kMostTile = 16 << 20;        // A copy of cached bytes (cached_bytes.h) gains little from more.
constexpr std::int64_t kLeastTile = 1 << 20;

/// The memory of all boxes as one file. Threads: safe after the last `add`.
class BoxMemory final : public FileWriter {
 public:
  /// \returns the offset of the memory's first byte in the file.
  std::int64_t add(std::span<std::byte> memory) {
    const std::int64_t begin = size_;
    size_ += std::ssize(memory);
    ends_.push_back(size_);
    memories_.push_back(memory);
    return begin;
  }
  std::int64_t size() const { return size_; }

  void write_at(std::int64_t offset, std::span<const std::byte> data) override {
    while (!data.empty()) {
      const std::span<std::byte> rest = from(offset);
      const std::size_t count = std::min(data.size(), rest.size());
      std::memcpy(rest.data(), data.data(), count);
      data = data.subspan(count);
      offset += static_cast<std::int64_t>(count);
    }
  }
  std::span<std::byte> in_memory(std::int64_t offset, std::size_t bytes) override {
    const std::span<std::byte> rest = from(offset);
    return rest.size() < bytes ? std::span<std::byte>() : rest.first(bytes);
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

 private:
  /// The memory from `offset` to the end of its box. \pre the offset is inside the file
  std::span<std::byte> from(std::int64_t offset) const {
    const auto index = static_cast<std::size_t>(std::ranges::upper_bound(ends_, offset) - ends_.begin());
    const std::int64_t left = ends_[index] - offset;
    return memories_[index].last(static_cast<std::size_t>(left));
  }

  std::vector<std::int64_t> ends_;
  std::vector<std::span<std::byte>> memories_;
  std::int64_t size_ = 0;
};

/// A box must be inside its tensor, and must not end inside a byte that packed elements share.
void check_box(const Tensor& tensor, const WantedBox& wanted) {
  const Box& box = wanted.box;
  bool is_inside = box.dims == tensor.shape.size();
  for (int d = 0; is_inside && d < box.dims; ++d) {
    const auto i = static_cast<std::size_t>(d);
    is_inside = box.offset[i] >= 0 && box.size[i] >= 0 && box.size[i] <= tensor.shape[d] &&
                box.offset[i] <= tensor.shape[d] - box.size[i];
  }
  if (!is_inside) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot read {}: it is outside the tensor", to_string(box)))
        .of_tensor(tensor.name)
        .expected(to_string(tensor.shape));
  }
  if (box.numel() % dtype_block(tensor.dtype).elements != 0) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot read {}: it ends inside a byte", to_string(box)))
        .of_tensor(tensor.name)
        .because(
            fmt::format("{} elements of {} share bytes", dtype_block(tensor.dtype).elements, dtype_name(tensor.dtype)));
  }
  if (wanted.dtype != tensor.dtype && !can_cast(tensor.dtype, wanted.dtype)) {
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot convert {} to {}", dtype_name(tensor.dtype), dtype_name(wanted.dtype)))
        .of_tensor(tensor.name);
  }
}

void check_memory(const Tensor& tensor, const WantedBox& wanted, std::int64_t bytes) {
  if (bytes == std::ssize(wanted.memory)) return;
  throw Error(ErrorCode::kInvalidArgument,
              fmt::format("cannot read {}: its memory has a different size", to_string(wanted.box)))
      .of_tensor(tensor.name)
      .expected(bytes)
      .found(std::ssize(wanted.memory));
}

/// Describes one box as a tensor of the target, whose only file is `memory`.
void add_box(CatalogBuilder& builder, const Tensor& tensor, const WantedBox& wanted, BoxMemory& memory) {
  Arena& arena = *builder.catalog().arena;
  const std::int64_t bytes = std::ssize(wanted.memory);
  builder.begin(tensor.name, {}, wanted.dtype, tensor.shape);
  builder.tensor().source = wanted.tensor;
  const std::uint32_t storage = builder.add_storage({.offset = memory.add(wanted.memory), .bytes = bytes});
  const std::uint32_t stored = builder.add_row_major(storage, arena.dims(wanted.box.sizes()), wanted.dtype, -1);
  builder.add_chunk(stored, wanted.box.offsets(), wanted.box.sizes(), builder.catalog().stored[stored].strides, 0);
}

/// The usual size of a tile, so that each thread has one.
std::int64_t tile_bytes(bool is_on_disk, std::int64_t bytes, int threads) {
  return is_on_disk ? std::clamp(bytes / std::max(threads, 1), kLeastTile, kMostTile) : kLeastTile;
}

/// Whether a tensor is in local files.
bool is_local(const Reader& reader, const Tensor& tensor) {
  const Catalog& source = reader.catalog();
  if (tensor.chunk_count == 0) return false;
  return reader.bytes_of(source.stored[source.chunks[tensor.first_chunk].stored].storage)->descriptor() >= 0;
}

}  // namespace

std::int64_t read_boxes(const Reader& reader, std::span<const WantedBox> wanted, const ReadBoxesOptions& options) {
  const Catalog& source = reader.catalog();
  Catalog target;
  CatalogBuilder builder(target);
  BoxMemory memory;
  for (const WantedBox& each : wanted) {
    const Tensor& tensor = source.tensors.at(each.tensor);
    check_box(tensor, each);
    check_memory(tensor, each, checked_bytes(each.box.numel(), each.dtype));
    if (!each.memory.empty()) add_box(builder, tensor, each, memory);
  }
  if (memory.size() == 0) return 0;
  target.files.push_back({"memory", memory.size(), -1});
  // The boxes are a target with one file in memory, so that the planner and the executor read them like any other copy.
  const std::int64_t most = std::max(options.max_memory_bytes, kLeastBuffers);
  const int threads = memory.size() < kLeastForThreads ? 1 : options.threads;
  const bool is_on_disk = is_local(reader, source.tensors[wanted.front().tensor]);
  const Plan plan = plan_copies(source, target,
                                {.max_memory_bytes = most,
                                 .threads = threads,
                                 .line_tile_bytes = tile_bytes(is_on_disk, memory.size(), threads)});
  FileWriter* const files[] = {&memory};
  Progress progress;
  execute(plan, source, reader, target, files, {.threads = threads, .max_memory_bytes = most, .stop = options.stop},
          progress);
  return progress.bytes_read;
}

}  // namespace shard
