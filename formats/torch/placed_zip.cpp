#include "formats/torch/placed_zip.h"

#include <fmt/format.h>

#include <algorithm>
#include <cassert>

#include "formats/torch/saved_file.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/box.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::torch_save {

namespace {

// The top folder inside the zip: the file's name without its last extension, as torch takes it. Names that torch
// cannot use, or opens as a stream, get what streams get.
std::string top_folder(std::string_view file_name) {
  const std::string_view stem = file_name.substr(0, std::min(file_name.rfind('.'), file_name.size()));
  const bool is_plain =
      std::ranges::all_of(stem, [](char c) { return c >= ' ' && c < '\x7f' && c != '\\' && c != '/'; });
  return stem.empty() || stem == "." || stem == ".." || !is_plain ? "archive" : std::string(stem);
}

}  // namespace

std::string_view PlacedZip::next_key() const { return target_->arena->copy(std::to_string(records_.size())); }

TensorView PlacedZip::view_of(const StoredTensor& stored) {
  const Storage& storage = target_->storages[stored.storage];
  TensorView view;
  view.dtype = stored.dtype;
  view.shape = stored.shape;
  view.strides = stored.strides;
  view.first = stored.first;
  view.location = target_->locations[storage.location];
  view.storage_bytes = storage.bytes;
  view.requires_grad = stored.requires_grad;
  std::uint32_t& key = (*keys_)[stored.storage];
  if (key == kNoIndex) {
    key = static_cast<std::uint32_t>(records_.size());
    view.key = next_key();
    records_.push_back({stored.storage, {}});
  } else {
    view.key = target_->arena->copy(std::to_string(key));
  }
  return view;
}

TensorView PlacedZip::own_tensor(DType dtype, Dims shape, std::string content) {
  std::vector<std::int64_t> strides(static_cast<std::size_t>(shape.size()));
  row_major_strides(shape, strides);
  TensorView view;
  view.dtype = dtype;
  view.shape = shape;
  view.strides = target_->arena->dims(strides);
  view.key = next_key();
  view.location = "cpu";
  view.storage_bytes = static_cast<std::int64_t>(content.size());
  records_.push_back({kNoIndex, std::move(content)});
  return view;
}

void PlacedZip::place(Catalog& target, std::uint32_t file, const std::string& name, std::string data_pkl) {
  std::vector<std::int64_t> sizes;
  for (const Record& record : records_) {
    const bool is_own = record.storage == kNoIndex;
    sizes.push_back(is_own ? static_cast<std::int64_t>(record.content.size()) : target.storages[record.storage].bytes);
  }
  zip_ = std::make_unique<SavedZip>(top_folder(name), std::move(data_pkl), sizes);
  for (std::size_t i = 0; i < records_.size(); ++i) {
    if (records_[i].storage == kNoIndex) continue;
    Storage& storage = target.storages[records_[i].storage];
    assert(storage.file == file);
    storage.offset = zip_->data_offset(i);
  }
  target.files[file].path = name;
  target.files[file].bytes = zip_->total_bytes();
}

void PlacedZip::write(const Checksums& checksums, FileWriter& file) const {
  std::vector<std::uint32_t> crcs;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& record = records_[i];
    const std::span<const std::byte> content = std::as_bytes(std::span(record.content));
    crcs.push_back(record.storage == kNoIndex ? crc32(content) : checksums.crc32_of(record.storage));
    if (!content.empty()) file.write_at(zip_->data_offset(i), content);
  }
  for (const SavedZip::Span& span : zip_->frame(crcs)) {
    file.write_at(span.offset, std::as_bytes(std::span(span.content)));
  }
}

void check_objects(const Catalog& target) {
  HiddenTensors hidden;
  for (const Object& object : target.objects) {
    if (object.value == nullptr) continue;
    const std::string_view kind = hidden.kind_in(*object.value);
    if (kind.empty()) continue;
    Error error(ErrorCode::kUnsupported, fmt::format("'{}' cannot be written", object.name));
    error.of_tensor(object.name).hint("leave out what is no plain tensor with --objects drop");
    if (kind == "attribute") {
      error.because(fmt::format("it is an object ({}) that holds tensors as attributes", type_name(*object.value)));
    } else {
      const bool is_storage = kind.starts_with("storage");
      error.because(
          fmt::format("it is or holds a {}{}; only plain tensors can be written", kind, is_storage ? "" : " tensor"));
    }
    throw Error(error);
  }
}

}  // namespace shard::torch_save
