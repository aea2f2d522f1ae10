#include "formats/torch/placed_zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>
#include <span>
#include <utility>

#include "formats/torch/saved_file.h"
#include "formats/torch/unnamed_tensors.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/core/value_walk.h"

namespace shard::torch_save {

namespace {

// The top folder inside the zip: the file's name without its last extension, as in torch. Names that torch cannot use,
// or opens as a stream, get the folder name of streams.
std::string top_folder(std::string_view file_name) {
  const std::string_view stem = file_name.substr(0, std::min(file_name.rfind('.'), file_name.size()));
  const bool is_plain =
      std::ranges::all_of(stem, [](char c) { return c >= ' ' && c < '\x7f' && c != '\\' && c != '/'; });
  return stem.empty() || stem == "." || stem == ".." || !is_plain ? "archive" : std::string(stem);
}

}  // namespace

std::string_view PlacedZip::text_of(std::uint32_t key) { return key_text_ = std::to_string(key); }

TensorView PlacedZip::view_of(const Catalog& target, const StoredTensor& stored) {
  const Storage& storage = target.storages[stored.storage];
  TensorView view;
  view.dtype = stored.dtype;
  view.shape = stored.shape;
  view.strides = stored.strides;
  view.first = stored.first;
  view.location = target.locations[storage.location];
  view.storage_bytes = storage.bytes;
  view.requires_grad = stored.requires_grad;
  std::uint32_t& key = (*keys_)[stored.storage];
  if (key == kNoIndex) {
    key = static_cast<std::uint32_t>(storages_.size());
    storages_.push_back(stored.storage);
  }
  view.key = text_of(key);
  return view;
}

/// The pickle is dumped twice, to measure it and to write it. The second time, the tensors of the first are found again
/// in the same order, which `next_own_` counts.
TensorView PlacedZip::own_tensor(Arena& arena, DType dtype, Dims shape, std::string content) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.size()));
  row_major_strides(shape, strides);
  TensorView view;
  view.dtype = dtype;
  view.shape = shape;
  view.strides = arena.dims(strides);
  view.location = "cpu";
  view.storage_bytes = static_cast<std::int64_t>(content.size());
  if (next_own_ == own_.size()) {
    own_.push_back({static_cast<std::uint32_t>(storages_.size()), std::move(content), 0});
    own_.back().crc = crc32(std::as_bytes(std::span(own_.back().content)));
    storages_.push_back(kNoIndex);
  }
  view.key = text_of(own_[next_own_++].key);
  return view;
}

/// Offsets of storages depend only on sizes, so they are known before any element is read. The assertion in `begin`
/// ensures that both dumps have the same length.
void PlacedZip::place(Catalog& target, std::uint32_t file, const std::string& name, const DumpPickle& dump) {
  dump([this](std::string_view piece) { pickle_bytes_ += std::ssize(piece); });
  std::vector<std::int64_t> sizes;
  sizes.reserve(storages_.size());
  std::size_t own = 0;
  for (const std::uint32_t storage : storages_) {
    sizes.push_back(storage == kNoIndex ? std::ssize(own_[own++].content) : target.storages[storage].bytes);
  }
  const auto note = target.metadata.find(kLostNote);
  const bool has_note = file == 0 && note != target.metadata.end();
  zip_ = std::make_unique<SavedZip>(top_folder(name), pickle_bytes_, sizes, has_note ? note->second : std::string());
  for (std::size_t key = 0; key < storages_.size(); ++key) {
    if (storages_[key] == kNoIndex) continue;
    Storage& storage = target.storages[storages_[key]];
    assert(storage.file == file);
    storage.offset = zip_->data_offset(key);
  }
  target.files[file].path = name;
  target.files[file].bytes = zip_->total_bytes();
}

void PlacedZip::begin(FileWriter& file, const DumpPickle& dump) {
  next_own_ = 0;
  JoinedWrites writes(file);
  std::string text;
  zip_->append_begin(text);
  writes.append(text);
  [[maybe_unused]] const std::int64_t pickle = writes.end();
  pickle_crc_ = 0;
  dump([&](std::string_view piece) {
    pickle_crc_ = crc32(std::as_bytes(std::span(piece)), pickle_crc_);
    writes.append(piece);
  });
  assert(writes.end() == pickle + pickle_bytes_);
  text.clear();
  zip_->append_after_pickle(pickle_crc_, text);
  writes.append(text);
  writes.flush();
  write_own_tensors(file);
}

void PlacedZip::write_own_tensors(FileWriter& file) const {
  for (const OwnTensor& own : own_) {
    std::string text;
    zip_->append_before(own.key, text);
    const std::int64_t begin = zip_->data_offset(own.key) - std::ssize(text);
    text += own.content;
    zip_->append_after(own.key, own.crc, text);
    file.write_at(begin, std::as_bytes(std::span(text)));
  }
}

void PlacedZip::finish(const Checksums& checksums, FileWriter& file) const {
  std::size_t own = 0;
  std::vector<std::uint32_t> crcs;
  crcs.reserve(storages_.size());
  for (const std::uint32_t storage : storages_) {
    crcs.push_back(storage == kNoIndex ? own_[own++].crc : checksums.crc32_of(storage));
  }
  JoinedWrites writes(file, zip_->end_offset());
  zip_->write_end(
      pickle_crc_, [&](std::size_t key) { return crcs[key]; }, [&](std::string_view piece) { writes.append(piece); });
  writes.flush();
}

namespace {

/// The frames of a target whose file i is zips[i]. Ownership: both must outlive it.
class ZipFrames final : public StorageFrames {
 public:
  ZipFrames(const Catalog& target, const std::vector<PlacedZip>& zips) : target_(target), zips_(zips) {}
  void append_before(std::uint32_t storage, std::string& out) override { zip_of(storage).append_before(storage, out); }
  void append_after(std::uint32_t storage, std::uint32_t crc, std::string& out) override {
    zip_of(storage).append_after(storage, crc, out);
  }

 private:
  const PlacedZip& zip_of(std::uint32_t storage) const { return zips_[target_.storages[storage].file]; }
  const Catalog& target_;
  const std::vector<PlacedZip>& zips_;
};

}  // namespace

void check_dtype(const Tensor& tensor) {
  if (dtype_block(tensor.dtype).elements == 1) return;
  throw Error(ErrorCode::kUnsupported,
              fmt::format("tensor '{}' is {}, a dtype that torch does not have", tensor.name, dtype_name(tensor.dtype)))
      .of_tensor(tensor.name)
      .suggest(Remedy::kExclude, tensor.name);
}

/// Refuses a dict with a key of a class outside the list (Lightning before 1.5: callbacks by their class), which the
/// writer cannot repeat. Such values elsewhere are objects, which have names.
void check_keys(const Value& root) {
  ValueWalk walk(root);
  while (const Value* const value = walk.next()) {
    if (!is_mapping(*value)) continue;
    for (const auto [each, item] : ItemPairs(*value)) {
      if (each->kind != ValueKind::kOpaque) continue;
      const std::string key = text_of_key(*each);
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot write a dict with the key {}", key))
          .because("the key is of an unknown class, and only plain values can be written")
          .suggest(Remedy::kExcludeMatching, fmt::format("**{}**", glob_of_name(key)));
    }
  }
}

void check_contents(const Catalog& target) {
  for (const Tensor& tensor : target.tensors) check_dtype(tensor);
  HiddenTensors hidden(*target.arena);
  for (const Object& object : target.objects) {
    if (object.value == nullptr) continue;
    const std::string_view kind = hidden.kind_in(*object.value);
    if (kind.empty()) continue;
    Error error(ErrorCode::kUnsupported, fmt::format("cannot write '{}'", object.name));
    error.of_tensor(object.name).suggest(Remedy::kDropObjects);
    if (kind == "attribute") {
      error.because(fmt::format("it is an object ({}) with tensors as attributes", type_name(*object.value)));
    } else {
      const bool is_storage = kind.starts_with("storage");
      error.because(fmt::format("it is or contains a {}{}; only plain tensors can be written", kind,
                                is_storage ? "" : " tensor"));
    }
    throw Error(error);
  }
  if (target.root == nullptr) return;
  check_keys(*target.root);
  const std::vector<std::string> holding = containers_with_unnamed_tensors(*target.root, hidden);
  if (holding.empty()) return;
  throw Error(ErrorCode::kUnsupported, holding[0].empty() ? "cannot write the outermost container"
                                                          : fmt::format("cannot write '{}'", holding[0]))
      .because("tensors are attributes of this container, so they have no names");
}

void ZipsWriter::place_zip(Catalog& target, const std::string& name) {
  if (zips_.empty()) keys_.assign(target.storages.size(), kNoIndex);
  const auto file = static_cast<std::uint32_t>(zips_.size());
  zips_.emplace_back(keys_).place(target, file, name, pickle_of(target, file));
}

void ZipsWriter::place_text(Catalog& target, std::string path, std::string content) {
  target.files.push_back({std::move(path), std::ssize(content), -1});
  texts_.push_back(std::move(content));
}

void ZipsWriter::begin_file(const Catalog& target, std::uint32_t file, FileWriter& to) {
  if (file < zips_.size()) zips_[file].begin(to, pickle_of(target, file));
}

std::unique_ptr<StorageFrames> ZipsWriter::frames(const Catalog& target) const {
  return std::make_unique<ZipFrames>(target, zips_);
}

void ZipsWriter::finish_file(const Catalog&, std::uint32_t file, const Checksums& checksums, FileWriter& to) {
  if (file < zips_.size()) return zips_[file].finish(checksums, to);
  to.write_at(0, std::as_bytes(std::span(texts_[file - zips_.size()])));
}

}  // namespace shard::torch_save
