#include "libshard/catalog/target_checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "libshard/catalog/target_pieces.h"
#include "libshard/core/error.h"
#include "libshard/core/first_names.h"

namespace shard {

namespace {

bool keeps_tree(const Catalog& source, const Selection& selection, const FormatTraits& traits) {
  return traits.sharing && source.root != nullptr && !selection.renamed;
}

[[noreturn]] void throw_two_ranks(std::string_view name, bool whole) {
  if (whole) {
    throw Error(ErrorCode::kCorruption, fmt::format("ranks hold different values of '{}'", name))
        .of_tensor(name)
        .of_kind(FindingKind::kReplicaMismatch)
        .because("there is no rule for choosing one of them")
        .suggest(Remedy::kExclude, name);
  }
  throw Error(ErrorCode::kUnsupported, fmt::format("ranks hold different values of '{}'", name)).of_tensor(name);
}

/// "['a', 0]", for messages.
std::string to_string(Path path, std::string_view name) {
  if (path.empty()) return fmt::format("['{}']", name);
  std::vector<std::string> parts;
  for (const PathPart& part : path) {
    parts.push_back(part.is_index ? std::to_string(part.index) : fmt::format("'{}'", part.key()));
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

[[noreturn]] void throw_two_paths(std::string_view name, Path a, Path b, const FormatTraits& traits) {
  throw Error(ErrorCode::kUnsupported,
              fmt::format("two paths are named '{}': {} and {}", name, to_string(a, name), to_string(b, name)))
      .of_tensor(name)
      .of_kind(FindingKind::kDuplicateName)
      .because(fmt::format("{} identifies tensors by name only", traits.sharing ? "a rebuilt tree" : traits.name))
      .suggest(Remedy::kExclude, name);
}

struct NamedEntry {
  std::string_view name;
  Path path;
  std::int32_t rank;
};

/// Tensors and objects together, by name; each list is sorted by name already.
std::vector<NamedEntry> all_names(const Catalog& source, const Selection& selection) {
  std::vector<NamedEntry> tensors, objects, all;
  tensors.reserve(selection.tensors.size());
  for (const SelectedTensor& each : selection.tensors) {
    tensors.push_back({each.name, each.path, source.tensors[each.source].rank});
  }
  for (const SelectedObject& each : selection.objects) {
    objects.push_back({each.name, each.path, source.objects[each.source].rank});
  }
  if (objects.empty()) return tensors;
  all.reserve(tensors.size() + objects.size());
  std::ranges::merge(tensors, objects, std::back_inserter(all), {}, &NamedEntry::name, &NamedEntry::name);
  return all;
}

}  // namespace

void check_layout(const Layout& layout, const FormatTraits& traits) {
  if (cuts_tensors(layout) && !std::holds_alternative<KeepLayout>(layout) && !traits.pieces) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} holds whole tensors only", traits.name))
        .because("the layout cuts tensors into pieces")
        .suggest(Remedy::kWriteAs, "dcp")
        .suggest(Remedy::kSpreadFiles);
  }
  const bool is_files = std::holds_alternative<ShardsLayout>(layout) || std::holds_alternative<SizeLayout>(layout);
  if (is_files && traits.uncut_on_all) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} always writes one file per rank", traits.name))
        .because("the number or size of files can be set only for whole tensors")
        .suggest(Remedy::kCutTensors);
  }
}

void check_objects(const Selection& selection, const FormatTraits& traits) {
  if (traits.objects || selection.objects.empty()) return;
  FirstNames names;
  for (const SelectedObject& object : selection.objects) names.add(object.name);
  throw Error(ErrorCode::kUnsupported, fmt::format("{} cannot store objects, and the source has {}: {}", traits.name,
                                                   names.count(), names.text()))
      .because("it can store only tensors")
      .suggest(Remedy::kDropObjects);
}

void check_names(const Catalog& source, const Selection& selection, const FormatTraits& traits, bool whole) {
  const bool paths_differ = keeps_tree(source, selection, traits);
  const std::vector<NamedEntry> names = all_names(source, selection);
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (names[i - 1].name != names[i].name) continue;
    if (names[i - 1].rank != names[i].rank) throw_two_ranks(names[i].name, whole);
    if (!paths_differ) throw_two_paths(names[i].name, names[i - 1].path, names[i].path, traits);
  }
}

}  // namespace shard
