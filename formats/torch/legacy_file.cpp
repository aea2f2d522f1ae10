#include "formats/torch/legacy_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "formats/parts/pickle/opcodes.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

using std::string_view_literals::operator""sv;

constexpr std::string_view kMagic = "\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"sv;  // LONG1 10 ... STOP
// Protocol 4 writes this frame before such a short pickle.
constexpr std::string_view kFrame = "\x95\x0d\0\0\0\0\0\0\0"sv;
constexpr std::int64_t kProtocol = 1001;
constexpr std::int64_t kWindow = 4096, kCountBytes = 8;

struct LegacyStorage {
  std::string_view key;
  std::int64_t element_bytes = 0, bytes = 0;
  std::int64_t offset = -1;  ///< The offset of the elements in the file.
};

/// Collects the storages that the persistent ids of the object describe, by key, without duplicates.
std::vector<LegacyStorage> storages_of(std::span<Value* const> ids) {
  std::vector<LegacyStorage> storages;
  storages.reserve(ids.size());
  for (const Value* id : ids) {
    const StorageId said = as_storage_id(*id);
    storages.push_back({said.key, element_bytes(said.dtype), said.bytes});
  }
  // Several ids may name one storage. torch counts its elements in the dtype of the first.
  std::ranges::stable_sort(storages, {}, &LegacyStorage::key);
  for (std::size_t i = 1; i < storages.size(); ++i) {
    const LegacyStorage &a = storages[i - 1], &b = storages[i];
    if (a.key != b.key || a.bytes == b.bytes) continue;
    throw Error(ErrorCode::kCorruption, fmt::format("two tensors record different sizes of storage {}", a.key))
        .expected(a.bytes)
        .found(b.bytes)
        .of_kind(FindingKind::kShapeMismatch);
  }
  const auto rest = std::ranges::unique(storages, {}, &LegacyStorage::key);
  storages.erase(rest.begin(), rest.end());
  return storages;
}

class LegacyFile final : public SavedFile {
 public:
  LegacyFile(std::shared_ptr<const RandomReader> file, Arena& arena, const SavedFileOptions& options)
      : file_(std::move(file)), arena_(arena), load_options_(load_options(options)) {
    version_ = "legacy, torch<1.6";
    try {
      read_header();
      std::vector<Value*> ids;
      load_options_.persistent_ids = &ids;
      root_ = next_pickle();
      storages_ = storages_of(ids);
      load_options_.persistent_ids = nullptr;
      place_or_lose(options);
      window_ = {};
    } catch (Error& error) {
      throw error.in_file(options.shown);
    }
  }

  std::uint32_t record_count() const override { return static_cast<std::uint32_t>(storages_.size()); }

  std::uint32_t find(std::string_view key) const override {
    const auto found = std::ranges::lower_bound(storages_, key, {}, &LegacyStorage::key);
    if (found == storages_.end() || found->key != key || found->offset < 0) return kNoIndex;
    return static_cast<std::uint32_t>(found - storages_.begin());
  }

  SavedRecord record(std::uint32_t number) const override {
    const LegacyStorage& storage = storages_[number];
    return {.bytes = storage.bytes, .stored_bytes = storage.bytes, .order = storage.offset};
  }

  std::string why_lost(std::string_view key) const override {
    return fmt::format("storage {} is not all there: {}", key, why_lost_);
  }

  std::string record_name(std::uint32_t number) const override {
    return fmt::format("storage {}", storages_[number].key);
  }
  std::int64_t locate(std::uint32_t number) const override { return storages_[number].offset; }
  std::vector<std::int64_t> locate_all(std::span<const std::uint32_t> numbers) const override {
    std::vector<std::int64_t> offsets;
    for (const std::uint32_t number : numbers) offsets.push_back(locate(number));
    return offsets;
  }

 private:
  /// For repair: everything after a fault is lost, because a storage's offset is only known from the one before it.
  void place_or_lose(const SavedFileOptions& options) {
    try {
      place_storages(*next_pickle());
    } catch (const Error& error) {
      if (!options.findings->goes_on() || !is_damage(error)) throw;
      if (error.kind() == FindingKind::kShapeMismatch) lose_shifted();
      why_lost_ = error.what();
      options.findings->mend(fmt::format("{}: storages up to a fault were read: {}", options.shown, why_lost_));
    }
  }

  /// A wrong count behind a storage may be its last elements, if the file has more or fewer bytes than the storages.
  void lose_shifted() {
    std::int64_t end = at_;
    for (const LegacyStorage& storage : storages_) {
      if (storage.offset < 0) end = checked_add(end, checked_add(kCountBytes, storage.bytes));
    }
    if (last_ != nullptr && end != file_->size()) last_->offset = -1;
  }

  Value* next_pickle() {
    const std::int64_t bytes = pickle::scan(*file_, at_);
    const auto data = std::make_shared<const std::vector<std::byte>>(read_metadata(*file_, at_, bytes, arena_));
    arena_.adopt(data);
    at_ += bytes;
    return pickle::load(arena_, *data, load_options_);
  }

  /// Reads the first three pickles: magic number, protocol, description of the machine.
  void read_header() {
    next_pickle();  // Skips the magic number, which is_legacy_file has checked.
    const Value& protocol = *next_pickle();
    if (protocol.kind != ValueKind::kInt || protocol.number != kProtocol) {
      Error error(ErrorCode::kUnsupported, "a legacy torch.save file whose protocol is not 1001");
      if (protocol.kind == ValueKind::kInt) error.found(protocol.number);
      throw error.expected(kProtocol);
    }
    if (!is_mapping(*next_pickle())) {
      throw Error(ErrorCode::kCorruption, "the description of the machine is not a dict")
          .of_kind(FindingKind::kBadHeader);
    }
  }

  /// Places the storages, which follow the list of keys in its order and end with the file.
  void place_storages(const Value& keys) {
    if (keys.kind != ValueKind::kList) {
      throw Error(ErrorCode::kCorruption, "the storages' keys are not a list").of_kind(FindingKind::kBadHeader);
    }
    for (const Value* key : keys.items()) place_storage(*key);
    if (at_ == file_->size()) return;
    throw Error(ErrorCode::kCorruption, fmt::format("{} bytes follow the last storage", file_->size() - at_))
        .expected(at_)
        .found(file_->size())
        .of_kind(FindingKind::kBadHeader)
        .because("something was appended to the file, or a key was lost");
  }

  /// The i64 at `offset`. Reads the bytes after it too, because small storages are close together.
  std::int64_t number_at(std::int64_t offset) {
    const std::int64_t have = window_begin_ + static_cast<std::int64_t>(window_.size());
    if (offset < window_begin_ || offset + kCountBytes > have) {
      window_.resize(static_cast<std::size_t>(std::min<std::int64_t>(kWindow, file_->size() - offset)));
      window_begin_ = offset;
      file_->read_at(offset, window_);
    }
    std::int64_t number = 0;
    std::memcpy(&number, window_.data() + (offset - window_begin_), sizeof number);
    return number;
  }

  /// Places one storage: an i64 with the number of its elements, then the elements.
  void place_storage(const Value& key) {
    const auto wrong = [&](std::string_view what) {
      return Error(ErrorCode::kCorruption, fmt::format("the storage '{}' {}", key.is_string() ? key.text() : "?", what))
          .of_kind(FindingKind::kBadHeader);
    };
    if (!key.is_string()) throw wrong("has no string for a key");
    const auto found = std::ranges::lower_bound(storages_, key.text(), {}, &LegacyStorage::key);
    if (found == storages_.end() || found->key != key.text()) throw wrong("belongs to no tensor");
    if (found->offset >= 0) throw wrong("appears twice");
    if (file_->size() - at_ < kCountBytes) throw wrong("is past the end of the file").of_kind(FindingKind::kTruncated);
    const std::int64_t count = number_at(at_);
    if (found->bytes % found->element_bytes != 0 || count != found->bytes / found->element_bytes) {
      throw wrong("does not have the size that its tensors record")
          .expected(found->bytes / found->element_bytes)
          .found(count)
          .of_kind(FindingKind::kShapeMismatch);
    }
    if (found->bytes > file_->size() - at_ - kCountBytes) {
      throw wrong("is truncated")
          .expected(fmt::format("{} bytes at {}", found->bytes, at_ + kCountBytes))
          .found(fmt::format("a file of {}", file_->size()))
          .of_kind(FindingKind::kTruncated)
          .hint("fetch the file again");
    }
    found->offset = at_ + kCountBytes;
    at_ = found->offset + found->bytes;
    last_ = &*found;
  }

  std::shared_ptr<const RandomReader> file_;
  Arena& arena_;
  pickle::LoadOptions load_options_;
  std::int64_t at_ = 0;                  ///< The offset of the next read.
  std::vector<LegacyStorage> storages_;  ///< By key.
  LegacyStorage* last_ = nullptr;        ///< The storage that was placed last.
  std::vector<std::byte> window_;        ///< The bytes of the last read.
  std::int64_t window_begin_ = 0;
  std::string why_lost_;
};

}  // namespace

bool is_legacy_file(const RandomReader& file) {
  std::string head(static_cast<std::size_t>(std::min<std::int64_t>(file.size(), 32)), '\0');
  file.read_at(0, std::as_writable_bytes(std::span(head)));
  std::string_view rest = head;
  // PROTO and the version, with protocol 4 a frame, then the magic number as LONG1.
  if (rest.size() < 2 || rest[0] != '\x80' || rest[1] < 2 || rest[1] > 5) return false;
  rest.remove_prefix(2);
  if (rest.starts_with(kFrame)) rest.remove_prefix(kFrame.size());
  return rest.starts_with(kMagic);
}

std::unique_ptr<SavedFile> open_legacy_file(std::shared_ptr<const RandomReader> file, Arena& arena,
                                            const SavedFileOptions& options) {
  return std::make_unique<LegacyFile>(std::move(file), arena, options);
}

}  // namespace shard::torch_save
