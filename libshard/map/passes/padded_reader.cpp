#include "libshard/map/passes/padded_reader.h"

#include <algorithm>
#include <utility>

#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"

namespace shard {

namespace {

class Zeros final : public RandomReader {
 public:
  explicit Zeros(std::int64_t bytes) : bytes_(bytes) { name_ = "<zeros>"; }
  void read_at(std::int64_t, std::span<std::byte> out) const override { std::ranges::fill(out, std::byte{0}); }
  std::int64_t size() const override { return bytes_; }

 private:
  const std::int64_t bytes_;
};

}  // namespace

PaddedReader::PaddedReader(std::unique_ptr<Reader> inner, std::span<const PaddingTensor> paddings)
    : inner_(std::move(inner)), paddings_(paddings.begin(), paddings.end()) {
  add_zeros();
}

void PaddedReader::add_zeros() {
  catalog_ = inner_->catalog();
  catalog_.arena = std::make_shared<Arena>();
  catalog_.borrowed.push_back(inner_->catalog().arena);
  first_padding_ = static_cast<std::uint32_t>(catalog_.tensors.size());
  File file;
  const auto number = static_cast<std::uint32_t>(catalog_.files.size());
  CatalogBuilder builder(catalog_);
  for (const PaddingTensor& padding : paddings_) {
    Storage storage;
    storage.offset = file.bytes;
    storage.bytes = checked_bytes(checked_numel(padding.shape), padding.dtype);
    storage.file = number;
    file.bytes = checked_add(file.bytes, storage.bytes);
    const Dims shape = catalog_.arena->dims(padding.shape.span());
    catalog_.files.resize(number + 1);
    catalog_.files.back() = file;
    builder.begin("", {}, padding.dtype, shape);
    builder.add_whole(builder.add_row_major(builder.add_storage(storage), shape, padding.dtype, -1));
  }
  zeros_ = std::make_shared<Zeros>(file.bytes);
}

void PaddedReader::locate(std::span<const std::uint32_t> tensors) {
  std::vector<std::uint32_t> own;
  std::ranges::copy_if(tensors, std::back_inserter(own), [&](std::uint32_t tensor) { return tensor < first_padding_; });
  inner_->locate(own);
  add_zeros();
}

void PaddedReader::load_objects() {
  inner_->load_objects();
  add_zeros();
}

std::shared_ptr<const RandomReader> PaddedReader::file(std::uint32_t index) const {
  return index < inner_->catalog().files.size() ? inner_->file(index) : zeros_;
}

std::shared_ptr<const RandomReader> PaddedReader::bytes_of(std::uint32_t storage) const {
  return storage < inner_->catalog().storages.size() ? inner_->bytes_of(storage) : zeros_;
}

}  // namespace shard
