#include "formats/torch_ranks/rank_source.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>

#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::torch_ranks {

namespace {

constexpr std::array<std::string_view, 3> kSuffixes{".pt", ".pth", ".bin"};
constexpr std::string_view kLayout = "layout.json";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

bool has_suffix(std::string_view name) {
  return std::ranges::any_of(kSuffixes, [&](std::string_view suffix) { return name.ends_with(suffix); });
}

/// A number of at most 18 digits.
std::optional<std::int64_t> number_of(std::string_view digits) {
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), number);
  if (digits.empty() || error != std::errc() || end != digits.data() + digits.size()) return std::nullopt;
  return number;
}

std::string_view leading_digits(std::string_view text) {
  return text.substr(0, static_cast<std::size_t>(std::ranges::find_if_not(text, is_digit) - text.begin()));
}

/// The numbers in a name; nothing where one is too long.
std::optional<std::vector<std::int64_t>> numbers_in(std::string_view name) {
  std::vector<std::int64_t> numbers;
  for (std::size_t at = 0; at < name.size();) {
    const std::string_view digits = leading_digits(name.substr(at));
    at += std::max<std::size_t>(1, digits.size());
    if (digits.empty()) continue;
    const std::optional<std::int64_t> number = number_of(digits);
    if (!number) return std::nullopt;
    numbers.push_back(*number);
  }
  return numbers;
}

}  // namespace

RankSource find_rank_files(const Source& source) {
  RankSource files;
  const std::string& first = source.paths.front();
  const bool is_folder = source.paths.size() == 1 && source.store->status(first).kind == FileKind::kFolder;
  if (is_folder) {
    files.folder = first;
    files.names = source.store->list(first);
    std::erase_if(files.names, [&](const std::string& name) {
      return !has_suffix(name) || source.store->status(join_path(first, name)).kind != FileKind::kFile;
    });
  } else {
    files.names = source.paths;
  }
  const std::string layout = join_path(is_folder ? first : parent_path(first), kLayout);
  if (source.store->status(layout).kind == FileKind::kFile) files.layout = layout;
  return files;
}

std::string pattern_of(std::string_view name) {
  std::string pattern;
  for (const char c : name) {
    if (!is_digit(c)) {
      pattern += c;
    } else if (!pattern.ends_with('#')) {
      pattern += '#';
    }
  }
  return pattern;
}

namespace {

struct Numbering {
  std::size_t position;  ///< Which of a name's numbers differs.
  std::vector<std::int64_t> numbers;
};

std::optional<Numbering> numbering_of(std::span<const std::string> names) {
  std::vector<std::vector<std::int64_t>> numbers;
  const std::string pattern = pattern_of(base_name(names.front()));
  for (const std::string& name : names) {
    const std::string base = base_name(name);
    auto found = numbers_in(base);
    if (!found || pattern_of(base) != pattern) return std::nullopt;
    numbers.push_back(std::move(*found));
  }
  std::optional<std::size_t> position;
  for (std::size_t i = 0; i < numbers.front().size(); ++i) {
    const auto differs = [&](const auto& each) { return each[i] != numbers.front()[i]; };
    if (std::ranges::none_of(numbers, differs)) continue;
    if (position) return std::nullopt;
    position = i;
  }
  if (!position) return std::nullopt;
  Numbering numbering{*position, {}};
  for (const auto& each : numbers) numbering.numbers.push_back(each[*position]);
  return numbering;
}

}  // namespace

std::optional<std::vector<std::int64_t>> differing_numbers(std::span<const std::string> names) {
  std::optional<Numbering> numbering = numbering_of(names);
  return numbering ? std::optional(std::move(numbering->numbers)) : std::nullopt;
}

std::string name_of_rank(std::span<const std::string> names, std::span<const std::int64_t> ranks, std::int64_t rank) {
  const std::optional<Numbering> numbering = numbering_of(names);
  if (!numbering || !std::ranges::equal(numbering->numbers, ranks)) return {};
  std::string name = base_name(names.front());
  std::size_t at = 0, digits = 0;
  for (std::size_t i = 0; i <= numbering->position; ++i) {
    at = static_cast<std::size_t>(
        std::find_if(name.begin() + static_cast<std::ptrdiff_t>(at + digits), name.end(), is_digit) - name.begin());
    digits = leading_digits(std::string_view(name).substr(at)).size();
  }
  const bool is_padded = digits > 1 && name[at] == '0';
  return name.replace(at, digits, fmt::format("{:0{}}", rank, is_padded ? digits : 1));
}

std::optional<std::int64_t> rank_by_template(std::string_view file_path, std::span<const MeshAxis> mesh,
                                             std::string_view name) {
  std::vector<std::int64_t> coordinate(mesh.size());
  std::optional<std::int64_t> rank;
  while (!file_path.empty()) {
    const std::size_t open = file_path.find('{');
    const std::string_view text = file_path.substr(0, open);
    if (!name.starts_with(text)) return std::nullopt;
    name.remove_prefix(text.size());
    if (open == std::string_view::npos) break;
    const std::size_t close = file_path.find('}', open);
    if (close == std::string_view::npos) return std::nullopt;
    const std::string_view field = file_path.substr(open + 1, close - open - 1);
    file_path.remove_prefix(close + 1);
    const std::optional<std::int64_t> number = number_of(leading_digits(name));
    if (!number) return std::nullopt;
    name.remove_prefix(leading_digits(name).size());
    const auto axis = std::ranges::find(mesh, field, &MeshAxis::name);
    if (field == "rank") {
      rank = number;
    } else if (axis != mesh.end() && *number < axis->size) {
      coordinate[static_cast<std::size_t>(axis - mesh.begin())] = *number;
    } else {
      return std::nullopt;
    }
  }
  if (!name.empty() || rank) return name.empty() ? rank : std::nullopt;
  std::int64_t index = 0;
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) index = index * mesh[axis].size + coordinate[axis];
  return index;
}

}  // namespace shard::torch_ranks
