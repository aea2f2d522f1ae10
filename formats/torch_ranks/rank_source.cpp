#include "formats/torch_ranks/rank_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/name_pattern.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/suffixes.h"
#include "libshard/io/paths.h"

namespace shard::torch_ranks {

namespace {

constexpr std::string_view kLayout = "layout.json";

/// The only number that differs between names.
struct Numbering {
  std::vector<std::string> pieces;    ///< The first name, divided at its numbers.
  std::size_t piece;                  ///< The one that differs.
  std::vector<std::int64_t> numbers;  ///< By name.
};

std::optional<Numbering> numbering_of(std::span<const std::string> names) {
  std::vector<std::vector<std::string>> pieces;
  for (const std::string& name : names) pieces.push_back(cut_at_numbers(base_name(name)));
  std::optional<Numbering> numbering;
  for (std::size_t i = 0; i < pieces.front().size(); ++i) {
    std::vector<std::int64_t> numbers;
    for (const std::vector<std::string>& each : pieces) {
      if (each.size() != pieces.front().size()) return std::nullopt;
      if (i % 2 == 0 && each[i] != pieces.front()[i]) return std::nullopt;
      if (i % 2 == 0) continue;
      const std::optional<std::int64_t> number = parse_natural(each[i]);
      if (!number) return std::nullopt;
      numbers.push_back(*number);
    }
    if (std::ranges::all_of(numbers, [&](std::int64_t number) { return number == numbers.front(); })) continue;
    if (numbering) return std::nullopt;
    numbering = Numbering{pieces.front(), i, std::move(numbers)};
  }
  return numbering;
}

}  // namespace

RankSource find_rank_files(const Source& source) {
  RankSource files;
  const std::string& first = source.paths.front();
  const bool is_folder = is_one_folder(source);
  if (is_folder) {
    files.folder = first;
    files.names = source.store->list(first);
    std::erase_if(files.names, [&](const std::string& name) {
      return !ends_in_any(name, kTorchSuffixes) || !source.store->is_file(join_path(first, name));
    });
  } else {
    files.names = source.paths;
  }
  const std::string layout = join_path(is_folder ? first : parent_path(first), kLayout);
  if (source.store->is_file(layout)) files.layout = layout;
  return files;
}

std::optional<std::vector<std::int64_t>> differing_numbers(std::span<const std::string> names) {
  std::optional<Numbering> numbering = numbering_of(names);
  return numbering ? std::optional(std::move(numbering->numbers)) : std::nullopt;
}

std::string name_of_rank(std::span<const std::string> names, std::span<const std::int64_t> ranks, std::int64_t rank) {
  std::optional<Numbering> numbering = numbering_of(names);
  if (!numbering || !std::ranges::equal(numbering->numbers, ranks)) return {};
  std::string& digits = numbering->pieces[numbering->piece];
  const bool is_padded = digits.size() > 1 && digits.front() == '0';
  digits = fmt::format("{:0{}}", rank, is_padded ? digits.size() : 1);
  return fmt::format("{}", fmt::join(numbering->pieces, ""));
}

std::optional<std::int64_t> rank_by_template(std::string_view file_path, std::span<const MeshAxis> mesh,
                                             std::string_view name) {
  const std::optional<NamePattern> pattern = NamePattern::parse(file_path);
  if (!pattern) return std::nullopt;
  std::vector<std::int64_t> numbers(pattern->parts().size() - 1), coordinate(mesh.size());
  if (!pattern->read(name, numbers)) return std::nullopt;
  std::optional<std::int64_t> rank;
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const std::string& field = pattern->parts()[i].field;
    const auto axis = std::ranges::find(mesh, field, &MeshAxis::name);
    if (field == "rank") {
      rank = numbers[i];
    } else if (axis != mesh.end() && numbers[i] < axis->size) {
      coordinate[static_cast<std::size_t>(axis - mesh.begin())] = numbers[i];
    } else {
      return std::nullopt;
    }
  }
  return rank ? rank : std::optional(static_cast<std::int64_t>(index_on_mesh(mesh, coordinate)));
}

}  // namespace shard::torch_ranks
