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
      is_checked_(catalog_.tensors.size()),
      is_located_(inner_->catalog().tensors.size()) {
  const std::span<const UndoneMap::Padding> paddings = undone_.paddings();
  for (std::uint32_t i = 0; i < paddings.size(); ++i) {
    const std::vector<std::uint32_t> stored = undone_.stored_of(paddings[i]);
    unread_.push_back(static_cast<std::uint32_t>(stored.size()));
    for (const std::uint32_t tensor : stored) paddings_of_.emplace_back(tensor, i);
  }
  std::ranges::sort(paddings_of_);
}

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
  for (const std::uint32_t tensor : stored) {
    if (!is_located_[tensor]) check_paddings(tensor);
    is_located_[tensor] = true;
  }
}

/// Those whose last stored tensor is located now.
void MappedReader::check_paddings(std::uint32_t stored) {
  using Pair = std::pair<std::uint32_t, std::uint32_t>;
  for (const auto& [tensor, number] : std::ranges::equal_range(paddings_of_, stored, {}, &Pair::first)) {
    if (--unread_[number] > 0) continue;
    const UndoneMap::Padding& padding = undone_.paddings()[number];
    Arena arena;
    for (const Chunk& chunk : undone_.chunks_of(inner_->catalog(), padding, arena)) {
      check_padding(*inner_, padding.name, chunk);
    }
  }
}

void MappedReader::load_objects() {
  inner_->load_objects();
  catalog_.objects = inner_->catalog().objects;
  catalog_.borrowed.push_back(inner_->catalog().arena);
}

}  // namespace shard
