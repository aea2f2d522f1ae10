#include "formats/dcp/item_zips.h"

#include <algorithm>
#include <span>
#include <string_view>

#include "formats/torch/tensor_pickle.h"
#include "libshard/core/digest.h"

namespace shard::dcp {

namespace {

std::string pickle_of(const StoredTensor& box, std::int64_t storage_bytes) {
  torch_save::TensorView view;
  view.dtype = box.dtype;
  view.shape = box.shape;
  view.strides = box.strides;
  view.first = box.first;
  view.key = "0";
  view.location = "cpu";
  view.storage_bytes = storage_bytes;
  Value root;
  become_tensor(root, 0);
  return torch_save::dump(root, [&](std::int64_t) { return view; });
}

}  // namespace

ItemZip::ItemZip(const StoredTensor& box, std::int64_t storage_bytes)
    : ItemZip(box, storage_bytes, pickle_of(box, storage_bytes)) {}

ItemZip::ItemZip(const StoredTensor& box, std::int64_t storage_bytes, const std::string& pickle)
    : dtype_(box.dtype),
      shape_(box.shape),
      strides_(box.strides),
      first_(box.first),
      storage_bytes_(storage_bytes),
      zip_("archive", std::ssize(pickle), std::span(&storage_bytes, 1)),
      pickle_crc_(crc32(std::as_bytes(std::span(pickle)))) {
  zip_.append_begin(before_);
  before_ += pickle;
  zip_.append_after_pickle(pickle_crc_, before_);
  zip_.append_before(0, before_);
}

void ItemZip::append_after(std::uint32_t crc, std::string& out) const {
  zip_.append_after(0, crc, out);
  zip_.write_end(
      pickle_crc_, [crc](std::size_t) { return crc; }, [&out](std::string_view piece) { out += piece; });
}

const ItemZip& ItemZips::zip_of(const Catalog& target, std::uint32_t stored) {
  const StoredTensor& box = target.stored[stored];
  const std::int64_t bytes = target.storages[box.storage].bytes;
  if (!known_.empty() && known_[last_].fits(box, bytes)) return known_[last_];
  const auto found = std::ranges::find_if(known_, [&](const ItemZip& zip) { return zip.fits(box, bytes); });
  last_ = static_cast<std::size_t>(found - known_.begin());
  if (found != known_.end()) return *found;
  if (known_.size() == kMost) known_.pop_front();
  last_ = known_.size();
  return known_.emplace_back(box, bytes);
}

}  // namespace shard::dcp
