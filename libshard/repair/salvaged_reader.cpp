#include "libshard/repair/salvaged_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "libshard/core/budget.h"
#include "libshard/core/checked.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/parallel.h"
#include "libshard/core/short_text.h"
#include "libshard/repair/lost_note.h"

namespace shard {

namespace {

std::vector<std::int64_t> numbers(Dims dims) { return {dims.begin(), dims.end()}; }

class SalvagedReader final : public Reader {
 public:
  SalvagedReader(std::unique_ptr<Reader> inner, Salvage& salvage, int threads, const IsWanted& is_wanted)
      : inner_(std::move(inner)), threads_(threads) {
    inner_->load_objects();
    keep_whole(salvage);
    std::vector<std::uint32_t> kept = kept_tensors();
    inner_->locate(kept);
    if (read_unchecked(kept, salvage)) {
      keep_whole(salvage);
      kept = kept_tensors();
    }
    lose_disproportionate(salvage);
    kept = kept_tensors();
    take_catalog(salvage);
    keep_items(salvage, is_wanted);
    refuse_nothing(kept.size(), salvage);
    const auto is_left_out = [&](const Loss& loss) { return is_wanted && is_unwanted(loss, is_wanted); };
    salvage.forget(is_left_out);
    note(salvage, is_left_out);
  }

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return inner_->file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return inner_->bytes_of(storage);
  }

 private:
  static bool is_same_box(const Chunk& a, const Chunk& b) { return a.offsets == b.offsets && a.sizes == b.sizes; }

  /// Decides for each tensor whether it is lost, and which of its chunks are dropped.
  void keep_whole(Salvage& salvage) {
    const Catalog& source = inner_->catalog();
    is_left_out_.assign(source.chunks.size(), false);
    is_lost_.resize(source.tensors.size());
    replaced_ = 0;
    for (std::size_t i = 0; i < is_lost_.size(); ++i) {
      if (!is_lost_[i]) is_lost_[i] = source.tensors[i].damaged || !is_whole(source.tensors[i], salvage);
    }
  }

  /// Equal boxes are adjacent, because validate_catalog sorts them.
  bool is_whole(const Tensor& tensor, Salvage& salvage) {
    const Catalog& source = inner_->catalog();
    const std::span<const Chunk> chunks = source.chunks_of(tensor);
    std::vector<std::pair<const Chunk*, const Error*>> lost;
    std::size_t replaced = 0;
    for (std::size_t begin = 0, end = 0; begin < chunks.size(); begin = end) {
      const std::size_t lost_before = lost.size();
      for (end = begin; end < chunks.size() && is_same_box(chunks[begin], chunks[end]); ++end) {
        const Error* const why = salvage.lost_storage(source.stored_of(chunks[end]).storage);
        if (why == nullptr) continue;
        lost.emplace_back(&chunks[end], why);
        is_left_out_[tensor.first_chunk + end] = true;
      }
      if (lost.size() - lost_before == end - begin) continue;  // No replica of the box is intact.
      replaced += lost.size() - lost_before;
      lost.resize(lost_before);
    }
    if (lost.empty()) {
      replaced_ += replaced;
      return true;
    }
    lose(tensor, lost, salvage);
    return false;
  }

  void lose(const Tensor& tensor, std::span<const std::pair<const Chunk*, const Error*>> lost, Salvage& salvage) const {
    const Catalog& source = inner_->catalog();
    Loss loss;
    loss.what = Loss::What::kTensor;
    loss.name = tensor.name;
    loss.dtype = dtype_name(tensor.dtype);
    loss.shape = numbers(tensor.shape);
    const Chunk& first = *lost.front().first;
    loss.file = source.file_of(first).path;
    loss.why = reason_of(*lost.front().second);
    const Chunk* last = nullptr;
    for (const auto& [chunk, why] : lost) {
      const bool is_listed = last != nullptr && is_same_box(*last, *chunk);
      if (tensor.chunk_count > 1 && !is_listed) loss.boxes.push_back({numbers(chunk->offsets), numbers(chunk->sizes)});
      last = chunk;
    }
    salvage.lose(std::move(loss));
  }

  std::vector<std::uint32_t> kept_tensors() const {
    std::vector<std::uint32_t> kept;
    for (std::uint32_t i = 0; i < is_lost_.size(); ++i) {
      if (!is_lost_[i]) kept.push_back(i);
    }
    return kept;
  }

  /// Reads the bytes that no checksum check has read, to find those that the disk cannot deliver. \returns whether some
  /// are lost.
  bool read_unchecked(std::span<const std::uint32_t> tensors, Salvage& salvage) const {
    const std::vector<Part> parts = unchecked_parts(tensors, salvage);
    std::vector<std::optional<Error>> failures(parts.size());
    for_each_index(parts.size(), threads_, {}, [&]() -> IndexWorker {
      return [&, block = std::vector<std::byte>()](std::size_t i) mutable {
        try {
          read(parts[i], block);
        } catch (const Error& error) {
          if (!is_damage(error)) throw;
          failures[i] = error;
        }
      };
    });
    bool is_any_lost = false;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      if (!failures[i]) continue;
      salvage.lose_storage(parts[i].storage, *failures[i]);
      is_any_lost = true;
    }
    return is_any_lost;
  }

  /// Bytes of a storage that one worker reads.
  struct Part {
    std::uint32_t storage = 0;
    std::int64_t begin = 0, end = 0;
  };

  /// Compressed storages are streams, so each is one part.
  std::vector<Part> unchecked_parts(std::span<const std::uint32_t> tensors, const Salvage& salvage) const {
    constexpr std::int64_t kPart = 64 << 20;
    const Catalog& source = inner_->catalog();
    HashSet<std::uint32_t> met;
    std::vector<Part> parts;
    for (const std::uint32_t tensor : tensors) {
      for (const Chunk& chunk : source.chunks_of(source.tensors[tensor])) {
        const std::uint32_t index = source.stored[chunk.stored].storage;
        const Storage& storage = source.storages[index];
        if (storage.crc32.has_value() || salvage.lost_storage(index) != nullptr || !met.insert(index)) continue;
        const std::int64_t step = storage.plain ? kPart : std::max<std::int64_t>(storage.bytes, 1);
        for (std::int64_t begin = 0; begin < storage.bytes; begin += step) {
          parts.push_back({index, begin, std::min(storage.bytes, begin + step)});
        }
      }
    }
    return parts;
  }

  void read(const Part& part, std::vector<std::byte>& block) const {
    constexpr std::int64_t kBlock = 1 << 20;
    const std::shared_ptr<const RandomReader> bytes = inner_->bytes_of(part.storage);
    const std::unique_lock<std::mutex> turn = bytes->turn();
    const std::int64_t offset = inner_->catalog().storages[part.storage].offset;
    for (std::int64_t at = part.begin; at < part.end; at += std::ssize(block)) {
      block.resize(static_cast<std::size_t>(std::min(kBlock, part.end - at)));
      bytes->read_at(offset + at, block);
    }
  }

  void take_catalog(Salvage& salvage) {
    catalog_ = inner_->catalog();
    std::vector<Chunk> chunks;
    chunks.reserve(catalog_.chunks.size());
    for (std::size_t i = 0; i < catalog_.tensors.size(); ++i) {
      Tensor& tensor = catalog_.tensors[i];
      const std::uint32_t begin = tensor.first_chunk, end = begin + tensor.chunk_count;
      tensor.damaged = is_lost_[i];
      tensor.first_chunk = static_cast<std::uint32_t>(chunks.size());
      for (std::uint32_t c = begin; c < end; ++c) {
        if (tensor.damaged || !is_left_out_[c]) chunks.push_back(catalog_.chunks[c]);
      }
      tensor.chunk_count = static_cast<std::uint32_t>(chunks.size()) - tensor.first_chunk;
    }
    catalog_.chunks = std::move(chunks);
    if (replaced_ > 0) {
      salvage.mend(fmt::format("{} damaged {} taken from {} replica on another rank", replaced_,
                               replaced_ == 1 ? "box was" : "boxes were", replaced_ == 1 ? "a" : "a whole"));
    }
  }

  /// Drops the largest tensors until the remaining ones are in proportion to their storages. The output contains only
  /// these, and readers must accept it.
  void lose_disproportionate(Salvage& salvage) {
    constexpr auto always = static_cast<double>(kNamedFloor), times = static_cast<double>(kNamedPerFileByte);
    const Catalog& source = inner_->catalog();
    std::vector<std::uint32_t> uses(source.storages.size());
    double named = 0, stored = 0;
    const auto use = [&](const Tensor& tensor, int change) {
      named += change * static_cast<double>(checked_bytes(checked_numel(tensor.shape), tensor.dtype));
      for (const Chunk& chunk : source.chunks_of(tensor)) {
        const std::uint32_t index = source.stored[chunk.stored].storage;
        const bool is_first = change > 0 && uses[index]++ == 0, is_last = change < 0 && --uses[index] == 0;
        if (is_first || is_last) stored += change * static_cast<double>(source.storages[index].bytes);
      }
    };
    std::vector<std::uint32_t> kept = kept_tensors();
    for (const std::uint32_t i : kept) use(source.tensors[i], 1);
    std::ranges::stable_sort(kept, std::greater(), [&](std::uint32_t i) {
      return checked_bytes(checked_numel(source.tensors[i].shape), source.tensors[i].dtype);
    });
    for (const std::uint32_t i : kept) {
      if (named <= std::max(always, times * stored)) return;
      use(source.tensors[i], -1);
      is_lost_[i] = true;
      Loss loss{.what = Loss::What::kTensor, .name = std::string(source.tensors[i].name)};
      loss.dtype = dtype_name(source.tensors[i].dtype);
      loss.shape = numbers(source.tensors[i].shape);
      loss.why = "its size is out of proportion to its stored bytes";
      salvage.lose(std::move(loss));
    }
  }

  /// Drops the unwanted ones among items that are copied unchanged, and reports that the others are copied.
  void keep_items(Salvage& salvage, const IsWanted& is_wanted) {
    if (catalog_.originals == nullptr || catalog_.originals->kept.empty()) return;
    auto wanted = std::make_shared<Originals>(*catalog_.originals);
    if (is_wanted) std::erase_if(wanted->kept, [&](const Originals::Kept& each) { return !is_wanted(each); });
    FirstNames names;
    for (const Originals::Kept& each : wanted->kept) names.add(each.name);
    if (names.count() > 0) {
      salvage.mend(fmt::format("{} copied as {}, because {} class is not read: {}",
                               names.count() == 1 ? "1 item was" : fmt::format("{} items were", names.count()),
                               names.count() == 1 ? "it is" : "they are", names.count() == 1 ? "its" : "their",
                               names.text()));
    }
    has_kept_items_ = !wanted->kept.empty();
    catalog_.originals = std::move(wanted);
  }

  void refuse_nothing(std::size_t kept, const Salvage& salvage) const {
    if (kept > 0 || has_kept_items_ || !catalog_.objects.empty() || salvage.losses().empty()) return;
    const Loss& first = salvage.losses().front();
    throw Error(ErrorCode::kCorruption, "cannot repair the source: nothing in it is intact")
        .in_file(first.file)
        .because(fmt::format("{}: {}",
                             salvage.losses().size() == 1
                                 ? "1 item is lost"
                                 : fmt::format("{} items are lost. The first", salvage.losses().size()),
                             first.why));
  }

  static bool is_unwanted(const Loss& loss, const IsWanted& is_wanted) {
    if (loss.what == Loss::What::kFile || loss.name.empty()) return false;
    Originals::Kept item{.name = loss.name};
    item.is_object = loss.what == Loss::What::kObject;
    return !is_wanted(item);
  }

  void note(const Salvage& salvage, const std::function<bool(const Loss&)>& is_left_out) {
    std::vector<Loss> all;
    std::int64_t unlisted = 0;
    if (auto earlier = read_lost_note(catalog_)) {
      unlisted = earlier->count - std::ssize(earlier->losses);
      all = std::move(earlier->losses);
    }
    std::erase_if(all, is_left_out);
    all.insert(all.end(), salvage.losses().begin(), salvage.losses().end());
    catalog_.metadata.erase(kLostNote);
    if (!all.empty() || unlisted > 0) catalog_.metadata[kLostNote] = dump_lost_note(all, unlisted);
  }

  std::unique_ptr<Reader> inner_;
  const int threads_;
  Catalog catalog_;
  std::vector<bool> is_lost_;      ///< Indexed by tensor.
  std::vector<bool> is_left_out_;  ///< Indexed by chunk of the inner catalog.
  bool has_kept_items_ = false;
  std::size_t replaced_ = 0;  ///< The number of chunks that are read from a different replica.
};

}  // namespace

std::unique_ptr<Reader> without_losses(std::unique_ptr<Reader> reader, Salvage& salvage, int threads,
                                       const IsWanted& is_wanted) {
  return std::make_unique<SalvagedReader>(std::move(reader), salvage, threads, is_wanted);
}

}  // namespace shard
