#include "libshard/map/mapped_reader.h"

#include <algorithm>
#include <utility>

#include "libshard/map/byte_checks.h"

namespace shard {

MappedReader::MappedReader(std::unique_ptr<Reader> inner, const ModelMap& map,
                           const std::function<bool(std::string_view)>& leaves_out)
    : inner_(std::move(inner)),
      undone_(inner_->catalog(), map, leaves_out),
      catalog_(undone_.make_catalog(inner_->catalog())),
      is_checked_(catalog_.tensors.size()) {}

void MappedReader::locate(std::span<const std::uint32_t> tensors) {
  std::vector<std::uint32_t> fresh;
  for (const std::uint32_t tensor : tensors) {
    if (!is_checked_[tensor]) fresh.push_back(tensor);
    is_checked_[tensor] = true;
  }
  const std::vector<std::uint32_t> stored = undone_.stored_of(fresh);
  inner_->locate(stored);
  undone_.refresh(inner_->catalog(), fresh, catalog_);
  for (const std::uint32_t tensor : fresh) {
    if (undone_.compares_replicas(tensor)) check_replicas(*this, catalog_.tensors[tensor]);
  }
  for (const UndoneMap::Padding& padding : undone_.paddings()) {
    if (!std::ranges::binary_search(stored, padding.stored)) continue;
    check_padding(*inner_, inner_->catalog().tensors[padding.stored], padding.dim, padding.begin);
  }
}

void MappedReader::load_objects() {
  inner_->load_objects();
  catalog_.objects = inner_->catalog().objects;
  catalog_.borrowed.push_back(inner_->catalog().arena);
}

}  // namespace shard
