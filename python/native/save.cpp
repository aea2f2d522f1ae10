#include "python/native/save.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "formats/parts/pickle/pickle.h"
#include "formats/registry.h"
#include "libshard/core/arena.h"
#include "libshard/core/checked.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"
#include "libshard/io/url_path.h"
#include "libshard/job/copy_job.h"
#include "libshard/ranks/collective_step.h"

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

/// The states of all ranks as an open checkpoint. Only this rank's own memory is readable.
class HeldReader final : public Reader {
 public:
  HeldReader(checkpoint::MergedState state, const HeldState& own, int rank)
      : catalog_(std::move(state.catalog)), rank_(rank) {
    for (const auto& [tensor, box] : state.held) memory_->add(own.memory.at(tensor).at(box));
  }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override {
    if (catalog_.files[index].rank == rank_) return memory_;
    throw Error(ErrorCode::kInternal, "another rank's memory cannot be read").in_file(catalog_.files[index].path);
  }

 private:
  const Catalog catalog_;
  const int rank_;
  const std::shared_ptr<HeldMemory> memory_ = std::make_shared<HeldMemory>();
};

const Format& format_of(const SaveRequest& request) {
  if (request.path.empty()) throw Error(ErrorCode::kInvalidArgument, "the destination is an empty string");
  if (is_url(request.path)) {
    throw Error(ErrorCode::kUnsupported, "cannot save to a URL")
        .in_file(request.path)
        .hint("save to a disk; then copy it: shardctl convert PATH -o URL");
  }
  const std::string_view by_suffix = format_of_suffix(request.path);
  std::string_view name = request.to;
  if (name.empty()) name = by_suffix;
  if (name.empty() && request.like != nullptr) name = request.like->format;
  if (name.empty()) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("the suffix of '{}' does not imply a format", request.path))
        .hint("name the format in `to`");
  }
  const Format& format = format_named(name);
  if (!by_suffix.empty() && by_suffix != name) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("the suffix of '{}' implies a different format than `to`", request.path))
        .expected(by_suffix)
        .found(name);
  }
  if (format.make_writer == nullptr || format.traits.mapped_ranks) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot write {} from memory", name));
  }
  if (request.like != nullptr && !format.traits.pieces) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot use `like`: {} stores only whole tensors", name))
        .because(request.to.empty() && by_suffix.empty() ? "it is the format of `like`" : "")
        .hint("omit `like`, or name a format that stores shards, such as to=\"dcp\"");
  }
  return format;
}

ManifestRequest manifest_of(const Format& format) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(fmt::format("save to {}\n", format.traits.name));
  return {.tool = "shardctl " SHARD_VERSION, .options = hasher.finish_hex(), .source = {}};
}

/// The arguments that must be the same on all ranks.
std::string request_text(const SaveRequest& request) {
  return fmt::format("{}{}{}{}{}: {}", request.to, request.like == nullptr ? "" : ", like a checkpoint",
                     request.force ? ", force" : "", request.sync ? "" : ", no sync",
                     request.manifest ? ", with a manifest" : "", request.path);
}

WriteOptions write_options(const SaveRequest& request) {
  const bool single_file = !format_of_suffix(request.path).empty();
  WriteOptions options{.single_file = single_file, .base_name = single_file ? base_name(request.path) : ""};
  if (request.like != nullptr) options.rank_files = request.like->rank_files;
  return options;
}

/// The states of all ranks, as this rank reads them.
std::unique_ptr<HeldReader> merge(std::span<const Bytes> states, const HeldState& own, const SaveRequest& request,
                                  int rank, WriteOptions& write, const FormatTraits& traits) {
  std::vector<checkpoint::RankState> ranks;
  for (const Bytes& bytes : states) ranks.push_back(checkpoint::rank_state(bytes));
  const checkpoint::MergeOptions options{.keeps_replicas = traits.keeps_replicas && request.like == nullptr,
                                         .keeps_shardings = traits.keeps_replicas && checkpoint::are_dtensors(ranks),
                                         .numbered_lists = request.numbered_lists};
  if (options.keeps_shardings && !write.rank_files) write.rank_files = RankFiles::kDTensor;
  return std::make_unique<HeldReader>(checkpoint::merge_states(ranks, rank, options), own, rank);
}

Layout layout_of(const SaveRequest& request, const FormatTraits& traits, bool single_file) {
  if (request.like != nullptr) return LikeLayout{request.like};
  if (traits.pieces && !traits.prefers_whole) return KeepLayout{};
  return single_file ? Layout(WholeLayout{}) : Layout(SizeLayout{kFileBytes});
}

}  // namespace

std::vector<std::string> save(const HeldState& state, const SaveRequest& request, Group& group,
                              const std::stop_token& stop) {
  const Format* format = nullptr;
  WriteOptions write;
  Bytes own;
  collective_step(group, {.stop = stop}, [&](const std::stop_token&) {
    format = &format_of(request);
    write = write_options(request);
    own = checkpoint::to_bytes(state);
  });
  if (group.size() > 1) {
    expect_same(group, request_text(request), ErrorCode::kInvalidArgument, "they call save() with different arguments");
  }
  const FormatTraits traits = traits_of(*format, write);
  const std::vector<Bytes> states = all_gather(group, own);
  std::unique_ptr<HeldReader> reader;
  CopyJob job;
  std::unique_ptr<OutputStore> output;
  collective_step(group, {.stop = stop}, [&](const std::stop_token&) {
    reader = merge(states, state, request, group.rank(), write, traits);
    job.reader = reader.get();
    job.target =
        selected_target(*reader, select(reader->catalog(), {}), layout_of(request, traits, write.single_file), traits);
    output = local_output(posix_disk(), request.path, {}, {.force = request.force, .sync = request.sync});
  });
  job.make_writer = [&](const Catalog&) { return writer_of(*format, write); };
  job.threads = request.threads;
  job.max_memory_bytes = request.max_memory_bytes;
  job.topology.by_owner = group.size() > 1;
  job.stop = stop;
  if (request.manifest) job.manifest = manifest_of(*format);
  Progress progress;
  return run_copy_job(*output, group, std::move(job), progress, {}).warnings;
}

std::optional<std::string> unknown_class(std::string_view pickle) {
  std::optional<std::string> unknown;
  pickle::LoadOptions options;
  options.file = "a value";
  options.opaque_unknown = true;
  options.allow = [&](std::string_view module, std::string_view name) {
    const bool is_known = pickle::is_known_global(module, name);
    if (!is_known && !unknown) unknown = fmt::format("{}.{}", module, name);
    return is_known;
  };
  Arena arena;
  pickle::load(arena, std::as_bytes(std::span(pickle)), options);
  return unknown;
}

RankPiece local_part(std::span<const std::int64_t> shape, std::span<const std::int64_t> mesh,
                     const std::vector<std::string>& placements, std::int64_t index) {
  std::vector<MeshAxis> axes;
  for (const std::int64_t size : mesh) axes.push_back({"", size});
  std::vector<Placement> parsed;
  for (const std::string& text : placements) parsed.push_back(parse_placement(text));
  return place_rank(shape, axes, parsed, index);
}

}  // namespace shard::python
