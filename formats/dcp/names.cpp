#include "formats/dcp/names.h"

#include <charconv>

namespace shard::dcp {
namespace {

/// Takes a natural number off the front of `text`; -1 where none is there.
template <class Number>
Number take_number(std::string_view& text) {
  Number number = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || number < 0) return -1;
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

}  // namespace

FileNumbers file_numbers(std::string_view name) {
  if (!name.starts_with("__")) return {};
  name.remove_prefix(2);
  FileNumbers numbers;
  numbers.rank = take_number<int>(name);
  if (numbers.rank < 0 || !name.starts_with('_')) return {};
  name.remove_prefix(1);
  numbers.number = take_number<std::int64_t>(name);
  return numbers.number >= 0 && name == ".distcp" ? numbers : FileNumbers{};
}

int metadata_rank(std::string_view name) {
  if (!name.starts_with("__")) return -1;
  name.remove_prefix(2);
  const int rank = take_number<int>(name);
  return name == kMetadataName ? rank : -1;
}

}  // namespace shard::dcp
