#include "python/native/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string_view>
#include <utility>

#include "formats/registry.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"
#include "libshard/job/copy_job.h"
#include "libshard/ranks/group.h"

namespace shard::python {
namespace {

constexpr std::int64_t kFileBytes = 5'000'000'000;  // Same as Hugging Face.

/// The memory of several tensors in sequence.
class HeldMemory final : public RandomReader {
 public:
  HeldMemory() { name_ = "memory"; }
  /// \returns the offset of its first byte.
  std::int64_t add(std::span<const std::byte> memory) {
    const std::int64_t begin = size();
    ends_.push_back(checked_add(begin, std::ssize(memory)));
    memories_.push_back(memory);
    return begin;
  }
  std::int64_t size() const override { return ends_.empty() ? 0 : ends_.back(); }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    while (!out.empty()) {
      const std::span<const std::byte> rest = from(offset_bytes);
      const std::size_t count = std::min(out.size(), rest.size());
      std::memcpy(out.data(), rest.data(), count);
      out = out.subspan(count);
      offset_bytes += static_cast<std::int64_t>(count);
    }
  }
  std::span<const std::byte> in_memory(std::int64_t offset_bytes, std::size_t bytes) const override {
    if (offset_bytes + static_cast<std::int64_t>(bytes) > size() || bytes == 0) return {};
    const std::span<const std::byte> rest = from(offset_bytes);
    return rest.size() < bytes ? std::span<const std::byte>() : rest.first(bytes);
  }

 private:
  /// The memory from `offset` to the end of its tensor. \pre the offset is inside
  std::span<const std::byte> from(std::int64_t offset) const {
    const auto index = static_cast<std::size_t>(std::ranges::upper_bound(ends_, offset) - ends_.begin());
    return memories_[index].last(static_cast<std::size_t>(ends_[index] - offset));
  }

  std::vector<std::int64_t> ends_;
  std::vector<std::span<const std::byte>> memories_;
};

/// The tensors as an open checkpoint with one file, their memory.
class HeldReader final : public Reader {
 public:
  explicit HeldReader(std::span<const HeldTensor> tensors) {
    CatalogBuilder builder(catalog_);
    std::map<std::pair<const std::byte*, std::size_t>, std::uint32_t> storages;
    for (const HeldTensor& tensor : tensors) {
      const auto [known, is_new] = storages.try_emplace({tensor.memory.data(), tensor.memory.size()});
      if (is_new || tensor.memory.empty()) {
        known->second =
            builder.add_storage({.offset = memory_->add(tensor.memory), .bytes = std::ssize(tensor.memory)});
      }
      builder.begin(tensor.name, {}, tensor.dtype, catalog_.arena->dims(tensor.shape));
      builder.add_whole(builder.add_row_major(known->second, builder.tensor().shape, tensor.dtype, -1));
    }
    catalog_.files.push_back({"memory", memory_->size(), -1});
    validate_catalog(catalog_);
  }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return memory_; }

 private:
  Catalog catalog_;
  const std::shared_ptr<HeldMemory> memory_ = std::make_shared<HeldMemory>();
};

void check_names(std::span<const HeldTensor> tensors) {
  std::vector<std::string_view> names;
  for (const HeldTensor& tensor : tensors) names.push_back(tensor.name);
  std::ranges::sort(names);
  const auto twice = std::ranges::adjacent_find(names);
  if (twice == names.end()) return;
  throw Error(ErrorCode::kInvalidArgument, "cannot save two tensors of one name").of_tensor(*twice);
}

const Format& format_of(const SaveRequest& request) {
  const std::string_view by_suffix = format_of_suffix(request.path);
  const std::string_view name = request.to.empty() ? by_suffix : std::string_view(request.to);
  if (name.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("the suffix of '{}' does not imply a format", request.path))
        .hint("name the format in `to`");
  }
  const Format& format = format_named(name);
  if (!by_suffix.empty() && by_suffix != name) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("the suffix of '{}' means another format", request.path))
        .expected(by_suffix)
        .found(name);
  }
  if (format.make_writer == nullptr || format.traits.mapped_ranks) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write {} from memory", name));
  }
  return format;
}

ManifestRequest manifest_of(const Format& format) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(fmt::format("save to {}\n", format.traits.name));
  return {.tool = "shardctl " SHARD_VERSION, .options = hasher.finish_hex(), .source = {}};
}

}  // namespace

std::vector<std::string> save(std::span<const HeldTensor> tensors, const SaveRequest& request,
                              const std::stop_token& stop) {
  check_names(tensors);
  const Format& format = format_of(request);
  const bool single_file = !format_of_suffix(request.path).empty();
  const WriteOptions write{.single_file = single_file, .base_name = single_file ? base_name(request.path) : ""};
  const FormatTraits traits = traits_of(format, write);
  HeldReader reader(tensors);
  CopyJob job;
  job.reader = &reader;
  const Layout layout = traits.pieces || single_file ? Layout(WholeLayout{}) : Layout(SizeLayout{kFileBytes});
  job.target = selected_target(reader, select(reader.catalog(), {}), layout, traits);
  job.make_writer = [&](const Catalog&) { return writer_of(format, write); };
  job.threads = request.threads;
  job.max_memory_bytes = request.max_memory_bytes;
  job.stop = stop;
  if (request.manifest) job.manifest = manifest_of(format);
  const std::unique_ptr<OutputStore> output =
      local_output(posix_disk(), request.path, {}, {.force = request.force, .sync = request.sync});
  Progress progress;
  return run_copy_job(*output, solo_group(), std::move(job), progress, {}).warnings;
}

}  // namespace shard::python
