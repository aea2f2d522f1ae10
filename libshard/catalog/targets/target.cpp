#include "libshard/catalog/targets/target.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "libshard/catalog/selection/glob.h"
#include "libshard/catalog/targets/target_draft.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/short_text.h"

namespace shard {

namespace {

// --- Checks, before anything is built, whether a selection and a layout fit a format.

bool keeps_tree(const Catalog& source, const Selection& selection, const FormatTraits& traits) {
  return traits.sharing && source.root != nullptr && !selection.renamed;
}

struct NamedEntry {
  std::string_view name;
  Path path;
  std::int32_t rank;
  std::string_view source_name;  ///< The one that globs to exclude it see.
};

/// A path for messages, for example "['a', 0]".
std::string to_string(Path path, std::string_view name) {
  if (path.empty()) return fmt::format("['{}']", name);
  std::vector<std::string> parts;
  for (const PathPart& part : path) {
    parts.push_back(part.is_index ? std::to_string(part.index) : fmt::format("'{}'", part.key()));
  }
  return fmt::format("[{}]", fmt::join(parts, ", "));
}

[[noreturn]] void throw_two_paths(const NamedEntry& a, const NamedEntry& b, const FormatTraits& traits) {
  throw Error(ErrorCode::kUnsupported, fmt::format("two paths are named '{}': {} and {}", a.name,
                                                   to_string(a.path, a.name), to_string(b.path, b.name)))
      .of_tensor(a.name)
      .of_kind(FindingKind::kDuplicateName)
      .because(fmt::format("{} identifies tensors by name only", traits.sharing ? "a rebuilt tree" : traits.name))
      .suggest(Remedy::kExclude, a.source_name);
}

/// The names of tensors and objects, merged in order. Each list is already sorted by name.
std::vector<NamedEntry> all_names(const Catalog& source, const Selection& selection) {
  std::vector<NamedEntry> tensors, objects, all;
  tensors.reserve(selection.tensors.size());
  for (const SelectedTensor& each : selection.tensors) {
    const Tensor& tensor = source.tensors[each.source];
    tensors.push_back({each.name, each.path, tensor.rank, tensor.name});
  }
  for (const SelectedObject& each : selection.objects) {
    const Object& object = source.objects[each.source];
    objects.push_back({each.name, each.path, object.rank, object.name});
  }
  if (objects.empty()) return tensors;
  all.reserve(tensors.size() + objects.size());
  std::ranges::merge(tensors, objects, std::back_inserter(all), {}, &NamedEntry::name, &NamedEntry::name);
  return all;
}

/// \throws Error kInvalidArgument  a layout of pieces for a format without them (KeepLayout then means whole tensors),
///   or a layout of several files for a format with a file for every rank.
void check_layout(const Layout& layout, const FormatTraits& traits) {
  if (cuts_tensors(layout) && !std::holds_alternative<KeepLayout>(layout) && !traits.pieces) {
    throw Error(ErrorCode::kInvalidArgument, fmt::format("{} stores only whole tensors", traits.name))
        .because("the layout shards tensors")
        .suggest(Remedy::kWriteAs, "dcp")
        .suggest(Remedy::kSpreadFiles);
  }
  const bool is_files = std::holds_alternative<ShardsLayout>(layout) || std::holds_alternative<SizeLayout>(layout);
  if (is_files && traits.replicate_whole_tensors) {
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

/// Suggests to exclude the first of `differing` together with those that are like it in other layers, if no other entry
/// is like it.
Error& suggest_exclusion(Error& error, std::span<const NamedEntry> all, std::span<const NamedEntry> differing) {
  const std::string_view first = differing.front().source_name;
  const GlobSet similar({glob_of_layers(first)});
  const auto matching = [&](std::span<const NamedEntry> entries) {
    std::set<std::string_view> names;
    for (const NamedEntry& each : entries) {
      if (similar.matches(each.source_name)) names.insert(each.source_name);
    }
    return names.size();
  };
  const std::size_t count = matching(differing);
  if (count == 1 || count != matching(all)) return error.suggest(Remedy::kExclude, first);
  return error.suggest(Remedy::kExcludeMatching, glob_of_layers(first));
}

/// \param differing  an entry for each name of which ranks have different values
[[noreturn]] void throw_ranks_differ(const Catalog& source, std::span<const NamedEntry> all,
                                     std::span<const NamedEntry> differing, bool whole) {
  std::vector<std::string> names;
  for (const NamedEntry& each : differing) names.emplace_back(each.name);
  Error error = ranks_differ(names);
  if (!whole) error = Error(ErrorCode::kUnsupported, error.what()).of_tensor(names.front()).because(error.why());
  const bool is_flat =
      std::ranges::any_of(source.tensors, [](const Tensor& tensor) { return is_flat_parameter(tensor.name); });
  if (!is_flat) throw suggest_exclusion(error, all, differing);
  throw error.because("the files are of FSDP's LOCAL_STATE_DICT, so each has its rank's part of the parameters, flat")
      .hint(kSaveWithoutFlatParameters);
}

void check_names(const Catalog& source, const Selection& selection, const FormatTraits& traits, bool whole) {
  const bool paths_differ = keeps_tree(source, selection, traits);
  const std::vector<NamedEntry> names = all_names(source, selection);
  std::vector<NamedEntry> differing;
  for (std::size_t i = 1; i < names.size(); ++i) {
    if (names[i - 1].name != names[i].name) continue;
    if (names[i - 1].rank != names[i].rank) {
      if (differing.empty() || differing.back().name != names[i].name) differing.push_back(names[i]);
    } else if (!paths_differ) {
      throw_two_paths(names[i - 1], names[i], traits);
    }
  }
  if (!differing.empty()) throw_ranks_differ(source, names, differing, whole);
}

// --- Files of whole tensors.

Error too_few(const std::string& message, std::int64_t number) {
  return Error(ErrorCode::kInvalidArgument, message).expected("at least 1").found(number);
}

/// Divides units into files balanced by bytes. Each file ends at the unit at which the sum so far is nearest to its
/// share of the total, and has at least one unit.
std::vector<std::uint32_t> balanced(std::int64_t shards, std::span<const std::int64_t> bytes) {
  if (shards < 1) throw too_few(fmt::format("cannot spread tensors over {}", plural(shards, "file")), shards);
  const auto units = static_cast<std::int64_t>(bytes.size());
  const std::int64_t files = std::min(shards, units);
  std::int64_t total = 0;
  for (const std::int64_t each : bytes) total = checked_add(total, each);
  std::vector<std::uint32_t> assigned(bytes.size());
  std::int64_t unit = 0, sum = 0;
  for (std::int64_t file = 0; file < files; ++file) {
    const std::int64_t share_end = begin_of_share(total, file + 1, files);
    const std::int64_t last = units - (files - 1 - file);  // Each of the remaining files needs at least one unit.
    const auto nearer = [&] { return share_end - sum > bytes[static_cast<std::size_t>(unit)] / 2; };
    for (bool is_first = true; unit < last && (is_first || file == files - 1 || nearer()); ++unit) {
      assigned[static_cast<std::size_t>(unit)] = static_cast<std::uint32_t>(file);
      sum += bytes[static_cast<std::size_t>(unit)];
      is_first = false;
    }
  }
  return assigned;
}

std::vector<std::uint32_t> greedy(std::int64_t limit, std::span<const std::int64_t> bytes) {
  if (limit < 1) throw too_few(fmt::format("cannot limit files to {} bytes", limit), limit);
  std::vector<std::uint32_t> assigned(bytes.size());
  std::vector<std::size_t> current;
  std::int64_t current_bytes = 0;
  std::uint32_t files = 0;
  const auto close = [&] {
    for (const std::size_t unit : current) assigned[unit] = files;
    files += current.empty() ? 0 : 1;
    current.clear();
    current_bytes = 0;
  };
  for (std::size_t unit = 0; unit < bytes.size(); ++unit) {
    if (bytes[unit] > limit) {
      assigned[unit] = files++;
      continue;
    }
    if (bytes[unit] > limit - current_bytes) close();
    current.push_back(unit);
    current_bytes += bytes[unit];
  }
  close();
  return assigned;
}

/// Assigns a file to each unit: a tensor, or several tensors that share a storage and therefore stay together. `bytes`
/// are the sizes of units, in name order. \returns file numbers, from 0 without gaps.
/// \throws Error kInvalidArgument  less than one shard or byte.
///
/// ShardsLayout: contiguous runs balanced by bytes; as many files as shards if there are enough units. SizeLayout:
/// greedy, as in huggingface_hub's split_state_dict_into_shards_factory. A unit that is larger than the limit gets a
/// separate file, and does not close the current one.
std::vector<std::uint32_t> assign_files(const Layout& layout, std::span<const std::int64_t> bytes) {
  if (const auto* shards = std::get_if<ShardsLayout>(&layout)) return balanced(shards->shards, bytes);
  if (const auto* size = std::get_if<SizeLayout>(&layout)) return greedy(size->bytes, bytes);
  return std::vector<std::uint32_t>(bytes.size());
}

// --- Whole tensors.

/// The file of each selected tensor. Tensors that share a storage form one unit.
std::vector<std::uint32_t> files_of_tensors(const TargetDraft& draft, const Layout& layout) {
  const SharingPlan& sharing = draft.sharing;
  const std::size_t count = draft.selection.tensors.size();
  std::vector<std::uint32_t> unit_of(count), unit_of_storage(sharing.storages().size(), kNoIndex);
  std::vector<std::int64_t> unit_bytes;
  const auto add_unit = [&](std::int64_t bytes) {
    unit_bytes.push_back(bytes);
    return static_cast<std::uint32_t>(unit_bytes.size() - 1);
  };
  for (std::size_t i = 0; i < count; ++i) {
    if (const std::uint32_t shared = sharing.shared(i); shared != kNoIndex) {
      if (unit_of_storage[shared] == kNoIndex) unit_of_storage[shared] = add_unit(sharing.storages()[shared].bytes);
      unit_of[i] = unit_of_storage[shared];
    } else if (draft.traits.aliases && sharing.alias(i) != kNoIndex) {
      unit_of[i] = unit_of[sharing.alias(i)];
    } else {
      unit_of[i] = add_unit(TargetDraft::bytes_of(draft.source_tensor(i).shape, draft.selection.tensors[i].dtype));
    }
  }
  const std::vector<std::uint32_t> file_of_unit = assign_files(layout, unit_bytes);
  std::vector<std::uint32_t> files;
  files.reserve(count);
  for (const std::uint32_t unit : unit_of) files.push_back(file_of_unit[unit]);
  return files;
}

class WholeAdder {
 public:
  WholeAdder(TargetDraft& draft, const std::vector<std::uint32_t>& files)
      : draft_(draft),
        target_(draft.target),
        builder_(draft.builder),
        files_(files),
        storage_of_shared_(draft.sharing.storages().size(), kNoIndex) {}

  void add_tensor(std::size_t selected) {
    const Tensor& tensor = draft_.begin_tensor(selected);
    StoredTensor stored = draft_.make_stored(selected, tensor.shape);
    if (draft_.traits.pieces && !draft_.traits.prefers_whole) stored.rank = static_cast<std::int32_t>(files_[selected]);
    if (const std::uint32_t shared = draft_.sharing.shared(selected); shared != kNoIndex) {
      stored.strides = draft_.source.chunks_of(draft_.source_tensor(selected)).front().strides;
      stored.first = draft_.sharing.first(selected);
      stored.storage = shared_storage(selected, shared);
    } else {
      stored.strides = row_major_strides(*target_.arena, tensor.shape);
      const bool is_repeated = draft_.traits.aliases && tensor.alias_of != kNoIndex;
      stored.storage = is_repeated ? target_.stored_of(target_.tensors[tensor.alias_of]).storage
                                   : add_storage(selected, TargetDraft::bytes_of(tensor.shape, tensor.dtype));
    }
    builder_.add_whole(builder_.add_stored(stored));
  }

 private:
  std::uint32_t add_storage(std::size_t selected, std::int64_t bytes) {
    const std::uint32_t storage = draft_.add_storage(selected, bytes);
    target_.storages[storage].file = files_[selected];
    return storage;
  }

  std::uint32_t shared_storage(std::size_t selected, std::uint32_t shared) {
    std::uint32_t& storage = storage_of_shared_[shared];
    if (storage != kNoIndex) return storage;
    const SharedStorage& from = draft_.sharing.storages()[shared];
    storage = add_storage(selected, from.bytes);
    target_.storages[storage].whole_copy = true;
    for (const UsedSpan& span : from.spans) {
      target_.storage_copies.push_back({from.from, storage, span.begin, span.to, span.end - span.begin});
    }
    return storage;
  }

  TargetDraft& draft_;
  Catalog& target_;
  CatalogBuilder& builder_;
  const std::vector<std::uint32_t>& files_;
  std::vector<std::uint32_t> storage_of_shared_;
};

/// Adds the selected tensors and the files, each tensor with its file's number as rank if the format has pieces and
/// does not prefer whole tensors. If it does, files have no rank either.
///
/// With `traits.sharing`, a tensor of the same dtype that shares its storage with another one, or is not row-major,
/// keeps storage and strides. Its storage becomes the union of the spans that the selected views use, listed in
/// `storage_copies`. With `traits.aliases`, aliases that are cast alike stay aliases, with or without `sharing`;
/// aliases with different casts become separate tensors, with a warning. Otherwise every name is stored in full and
/// row-major. Tensors that share a storage go to one file. \pre the layout does not shard tensors
/// \throws Error kInvalidArgument  several files for a format of one; as assign_files.
void add_whole_tensors(TargetDraft& draft, const Layout& layout) {
  draft.target.warnings = draft.sharing.warnings(false);
  const std::vector<std::uint32_t> files = files_of_tensors(draft, layout);
  const std::uint32_t count = files.empty() ? 1 : std::ranges::max(files) + 1;
  if (count > 1 && !draft.traits.many_files) {
    throw Error(ErrorCode::kInvalidArgument,
                fmt::format("{} is a single file, but the layout needs {}", draft.traits.name, count));
  }
  for (std::uint32_t file = 0; file < count; ++file) {
    draft.target.files.push_back({"", 0, draft.traits.prefers_whole ? -1 : static_cast<int>(file)});
  }
  WholeAdder adder(draft, files);
  for (std::size_t i = 0; i < files.size(); ++i) adder.add_tensor(i);
}

// --- Objects.

/// Whether a tensor that is an alias in the source is not an alias here.
bool has_parted_aliases(const TargetDraft& draft) {
  return std::ranges::any_of(draft.target.tensors, [&](const Tensor& tensor) {
    return tensor.alias_of == kNoIndex && draft.source.tensors[tensor.source].alias_of != kNoIndex;
  });
}

/// Whether a tensor requires gradients in the source and not here.
bool lost_gradients(const TargetDraft& draft, const Tensor& tensor) {
  const Tensor& from = draft.source.tensors[tensor.source];
  if (tensor.chunk_count == 0 || from.chunk_count == 0) return false;
  return draft.source.stored_of(from).requires_grad && !draft.target.stored_of(tensor).requires_grad;
}

Value* make_root(TargetDraft& draft, bool aliases_apart) {
  const Catalog &source = draft.source, &target = draft.target;
  const Selection& selection = draft.selection;
  const bool is_complete = selection.tensors.size() == source.tensors.size() &&
                           selection.objects.size() == source.objects.size() && !selection.renamed;
  const auto lost = [&](const Tensor& tensor) { return lost_gradients(draft, tensor); };
  const bool is_same = is_complete && !aliases_apart && !has_parted_aliases(draft);
  if (source.root != nullptr && is_same && std::ranges::none_of(target.tensors, lost)) return source.root;
  std::vector<TreeEntry> entries;
  entries.reserve(target.tensors.size() + target.objects.size());
  for (const Tensor& tensor : target.tensors) {
    entries.push_back({tensor.name, tensor.path, static_cast<std::uint32_t>(entries.size()), nullptr, !lost(tensor)});
  }
  for (const Object& object : target.objects) entries.push_back({object.name, object.path, kNoIndex, object.value});
  const bool is_pruned = source.root != nullptr && !selection.renamed;
  return is_pruned ? prune_tree(*target.arena, *source.root, entries) : tree_of_paths(*target.arena, entries);
}

/// Adds the selected objects and the root if the format supports objects.
///
/// The root is the source's tree without unselected entries. If names changed or there was no tree, it is rebuilt from
/// the paths (dicts with string and integer keys become dicts, runs of indices from 0 become lists). In a tree, one
/// value may represent all aliases of a tensor. With `aliases_apart`, some of them are separate tensors, and need
/// separate values.
/// \throws Error kInvalidArgument  a leaf of a rebuilt tree is inside a different leaf.
void add_objects(TargetDraft& draft, bool aliases_apart) {
  if (!draft.traits.objects) return;
  draft.target.objects.reserve(draft.selection.objects.size());
  for (const SelectedObject& object : draft.selection.objects) {
    draft.target.objects.push_back({object.name, object.path, draft.source.objects[object.source].value, -1});
  }
  draft.target.root = make_root(draft, aliases_apart);
}

}  // namespace

Error ranks_differ(const std::vector<std::string>& names) {
  return Error(ErrorCode::kCorruption, fmt::format("ranks have different values of {}", first_names(names)))
      .of_tensor(names.front())
      .of_kind(FindingKind::kReplicaMismatch)
      .because("there is no rule for choosing one of them");
}

bool is_flat_parameter(std::string_view name) {
  constexpr std::string_view kFlat = "flat_param";
  std::string_view last = name.substr(name.rfind('.') + 1);
  if (last.starts_with('_')) last.remove_prefix(1);
  if (!last.starts_with(kFlat)) return false;
  last.remove_prefix(kFlat.size());
  return last.empty() || (last.starts_with('_') && parse_natural(last.substr(1)).has_value());
}

Catalog make_target(const Catalog& source, const Selection& selection, const Layout& layout,
                    const FormatTraits& traits) {
  check_layout(layout, traits);
  check_objects(selection, traits);
  const bool is_cut = cuts_tensors(layout) && traits.pieces;
  check_names(source, selection, traits, !is_cut);
  TargetDraft draft(source, selection, traits);
  if (is_cut) {
    const bool aliases_apart = add_pieces(draft, layout);
    add_objects(draft, aliases_apart);
    add_rank_files(draft);
  } else {
    add_whole_tensors(draft, layout);
    add_objects(draft, false);
    if (traits.pieces && !traits.prefers_whole)
      draft.target.world_size = static_cast<std::int64_t>(draft.target.files.size());
  }
  const auto* mesh = std::get_if<MeshLayout>(&layout);
  if (mesh != nullptr && !mesh->file_path.empty()) {
    draft.target.warnings.push_back(fmt::format(
        "ignored the layout document's files.path '{}': {} names its files by rank", mesh->file_path, traits.name));
  }
  return std::move(draft.target);
}

}  // namespace shard
