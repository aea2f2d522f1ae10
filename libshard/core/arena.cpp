#include "libshard/core/arena.h"

#include <algorithm>
#include <new>

#include "libshard/core/pages.h"

namespace shard {

namespace {

/// Spreads shapes over the slots of recent shapes. A plain multiplicative hash is enough for a cache.
std::size_t slot_of(std::span<const std::int64_t> values, std::size_t slots) {
  std::uint64_t hash = values.size();
  for (const std::int64_t value : values) hash = (hash ^ static_cast<std::uint64_t>(value)) * 0x9E3779B97F4A7C15U;
  return static_cast<std::size_t>(hash >> 32) % slots;
}

}  // namespace

void* Arena::Blocks::do_allocate(std::size_t bytes, std::size_t align) {
  if (budget != nullptr) budget->charge(Charge::kArena, static_cast<std::int64_t>(bytes));
  if (bytes < 2 * kHugePage) return ::operator new(bytes, std::align_val_t(align));
  void* block = ::operator new(bytes, std::align_val_t(kHugePage));
  prefer_huge_pages(block, bytes);
  return block;
}

void Arena::Blocks::do_deallocate(void* block, std::size_t bytes, std::size_t align) {
  ::operator delete(block, std::align_val_t(bytes < 2 * kHugePage ? align : kHugePage));
}

std::string_view Arena::copy(std::string_view text) {
  if (text.empty()) return {};
  char* data = static_cast<char*>(allocate(text.size(), 1));
  std::memcpy(data, text.data(), text.size());
  return {data, text.size()};
}

Dims Arena::dims(std::span<const std::int64_t> values) {
  if (values.empty()) return {};
  Dims& recent = recent_[slot_of(values, std::size(recent_))];
  if (std::ranges::equal(recent.span(), values)) return recent;
  const std::span<std::int64_t> data = array<std::int64_t>(values.size() + 1);
  data[0] = static_cast<std::int64_t>(values.size());
  std::ranges::copy(values, data.begin() + 1);
  recent = Dims(data.data());
  return recent;
}

Dims Arena::zeros(int n) {
  if (n == 0) return {};
  const auto index = static_cast<std::size_t>(n);
  if (index < std::size(zeros_) && zeros_[index].size() == n) return zeros_[index];
  const std::span<std::int64_t> data = array<std::int64_t>(index + 1);
  data[0] = n;
  const Dims made(data.data());
  if (index < std::size(zeros_)) zeros_[index] = made;
  return made;
}

}  // namespace shard
