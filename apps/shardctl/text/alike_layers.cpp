#include "apps/shardctl/text/alike_layers.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>

#include "libshard/core/hash_table.h"
#include "libshard/core/parse_number.h"

namespace shard::app {
namespace {

constexpr std::size_t kNoSlot = static_cast<std::size_t>(-1);
constexpr std::size_t kMostSlots = 8;  ///< Limits the passes over all names.

/// A part of a name that is a number, or that represents a run of numbers.
struct Slot {
  std::size_t begin, size;  ///< Position in the name.
  std::int64_t first, last;
};

/// A line that may still be joined with others. `name` is the name of one member.
struct Line {
  std::string_view name;
  std::uint32_t kind;
  std::vector<Slot> slots;
  std::vector<std::uint32_t> members;
};

/// A number of at most nine digits in Python's form.
std::optional<std::int64_t> number_of(std::string_view part) {
  if (part.size() > 9 || (part.size() > 1 && part.front() == '0')) return std::nullopt;
  return parse_natural(part);
}

/// The last few numbers of a name.
std::vector<Slot> slots_of(std::string_view name) {
  std::vector<Slot> slots;
  for (std::size_t begin = 0, end = 0; begin <= name.size(); begin = end + 1) {
    end = std::min(name.find('.', begin), name.size());
    if (const auto number = number_of(name.substr(begin, end - begin))) {
      if (slots.size() == kMostSlots) slots.erase(slots.begin());
      slots.push_back({begin, end - begin, *number, *number});
    }
  }
  return slots;
}

/// The name with the numbers of each slot in place, and `*` for `open_slot`.
std::string pattern_of(const Line& line, std::size_t open_slot) {
  std::string text;
  std::size_t at = 0;
  for (std::size_t i = 0; i < line.slots.size(); ++i) {
    const Slot& slot = line.slots[i];
    text += line.name.substr(at, slot.begin - at);
    at = slot.begin + slot.size;
    if (i == open_slot) {
      text += '*';
    } else {
      text +=
          slot.first == slot.last ? fmt::format("{}", slot.first) : fmt::format("{{{}..{}}}", slot.first, slot.last);
    }
  }
  return text.append(line.name.substr(at));
}

/// A line that may be joined with others of the same pattern.
struct Numbered {
  std::int64_t number;
  std::uint32_t line, slot;
};

/// Joins each run of consecutive numbers to one line. The other lines of the run lose their members.
void join_runs(std::vector<Line>& lines, std::vector<Numbered>& alike) {
  std::ranges::sort(alike, {}, &Numbered::number);
  for (std::size_t i = 0, end = 0; i < alike.size(); i = end) {
    for (end = i + 1; end < alike.size() && alike[end].number == alike[end - 1].number + 1;) ++end;
    if (end - i < 2) continue;
    const auto run = std::span(alike).subspan(i, end - i);
    std::vector<std::uint32_t> members;
    for (const Numbered& each : run) {
      std::vector<std::uint32_t>& from = lines[each.line].members;
      members.insert(members.end(), from.begin(), from.end());
      from.clear();
    }
    const Numbered& first = *std::ranges::min_element(run, {}, &Numbered::line);
    Slot& slot = lines[first.line].slots[first.slot];
    slot.first = run.front().number;
    slot.last = run.back().number;
    lines[first.line].members = std::move(members);
  }
}

/// Joins lines that differ only in the slot before `later` other slots. \returns whether any line has such a slot.
bool join_slot(std::vector<Line>& lines, std::size_t later) {
  HashMap<std::string, std::vector<Numbered>> alike;
  for (std::uint32_t i = 0; i < lines.size(); ++i) {
    const Line& line = lines[i];
    if (line.slots.size() <= later) continue;
    const std::size_t slot = line.slots.size() - 1 - later;
    const std::string key = fmt::format("{} {}", line.kind, pattern_of(line, slot));
    alike[key].push_back({line.slots[slot].first, i, static_cast<std::uint32_t>(slot)});
  }
  for (auto& [key, numbered] : alike.entries()) join_runs(lines, numbered);
  std::erase_if(lines, [](const Line& line) { return line.members.empty(); });
  return !alike.empty();
}

}  // namespace

std::vector<LayerLine> join_alike_layers(std::span<const LayerTensor> tensors) {
  std::vector<Line> lines;
  lines.reserve(tensors.size());
  for (std::uint32_t i = 0; i < tensors.size(); ++i) {
    lines.push_back({tensors[i].name, tensors[i].kind, slots_of(tensors[i].name), {i}});
  }
  for (std::size_t later = 0; join_slot(lines, later);) ++later;
  std::vector<LayerLine> result;
  result.reserve(lines.size());
  for (Line& line : lines) result.push_back({pattern_of(line, kNoSlot), std::move(line.members)});
  return result;
}

}  // namespace shard::app
