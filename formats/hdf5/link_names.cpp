#include "formats/hdf5/link_names.h"

#include <algorithm>
#include <array>
#include <string_view>

namespace shard::hdf5 {

namespace {

struct Escape {
  char character;
  std::string_view text;
};
constexpr std::array<Escape, 3> kEscapes{{{'/', "%2F"}, {'%', "%25"}, {'\0', "%00"}}};

}  // namespace

std::string link_name(std::string_view key) {
  if (key.empty()) return "%";
  if (key == "." || key == "..") return key == "." ? "%2E" : "%2E%2E";
  std::string name;
  for (const char each : key) {
    const auto escape = std::ranges::find(kEscapes, each, &Escape::character);
    escape == kEscapes.end() ? name.push_back(each) : void(name.append(escape->text));
  }
  return name;
}

std::string key_of_link(std::string_view link) {
  if (link == "%") return {};
  if (link == "%2E" || link == "%2E%2E") return std::string(link.size() / 3, '.');
  std::string key;
  while (!link.empty()) {
    const auto escape = std::ranges::find_if(kEscapes, [&](const Escape& each) { return link.starts_with(each.text); });
    key.push_back(escape == kEscapes.end() ? link.front() : escape->character);
    link.remove_prefix(escape == kEscapes.end() ? 1 : escape->text.size());
  }
  return key;
}

std::string attribute_name(std::string_view key) { return (key.starts_with(kReserved) ? "%" : "") + link_name(key); }

std::string key_of_attribute(std::string_view name) {
  const bool is_marked = name.starts_with('%') && name.substr(1).starts_with(kReserved);
  return key_of_link(is_marked ? name.substr(1) : name);
}

}  // namespace shard::hdf5
