#include "formats/megatron/save.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/megatron/names.h"
#include "formats/megatron_tracker.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/tensor_finder.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/core/value_equality.h"
#include "libshard/io/paths.h"

namespace shard::megatron {

namespace {

constexpr std::string_view kRankFolder = "mp_rank_";

/// Names of the folders mp_rank_*, sorted; empty if `path` is not a folder.
std::vector<std::string> rank_folders(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return {};
  std::vector<std::string> names = store.list(path);
  std::erase_if(names, [&](const std::string& name) {
    return !name.starts_with(kRankFolder) || !store.is_folder(join_path(path, name));
  });
  std::ranges::sort(names);
  return names;
}

using pickle::malformed;

using torch_save::TensorFinder;

/// Collects a model chunk's tensors and objects under the names that present versions use.
class ChunkReader {
 public:
  ChunkReader(Arena& arena, ChunkStates& chunk) : arena_(arena), tensors_(arena), chunk_(chunk) {}

  void read(Value& model) {
    if (!is_mapping(model)) throw malformed("model", "it is not a dict").found(type_name(model));
    const auto no_leaf = [](const Value&) { return false; };
    visit_leaves(arena_, model, no_leaf, [this](const TreeLeaf& leaf) { visit(leaf); });
  }

 private:
  void visit(const TreeLeaf& leaf) {
    const std::optional<TensorView> view = tensors_.find(*leaf.value);
    if (view && is_extra_state(leaf.name)) {
      ++chunk_.hidden;
      return;
    }
    arena_.charge(Charge::kShards);
    const std::string_view name = present(leaf.name);
    const bool is_new =
        view ? chunk_.tensors.try_emplace(name, *view).is_new : chunk_.objects.try_emplace(name, leaf.value).is_new;
    if (is_new) return;
    throw Error(ErrorCode::kCorruption, fmt::format("the model contains '{}' twice", name))
        .of_tensor(name)
        .of_kind(FindingKind::kDuplicateName);
  }

  std::string_view present(std::string_view name) {
    if (!is_old_name(name)) return name;
    if (const std::optional<std::string> renamed = present_name(name)) return arena_.copy(*renamed);
    throw Error(ErrorCode::kUnsupported,
                fmt::format("cannot join '{}': Megatron-Core has no tensor of that name", name))
        .of_tensor(name);
  }

  Arena& arena_;
  TensorFinder tensors_;
  ChunkStates& chunk_;
};

/// Reads a file of the distributed optimizer; skips unknown forms.
class FlatReader {
 public:
  explicit FlatReader(Arena& arena) : tensors_(arena) {}

  std::vector<std::vector<FlatStates>> read(const Value& root) {
    std::vector<std::vector<FlatStates>> optimizers;
    const bool are_several = root.kind == ValueKind::kList;
    const Value* const one = &root;
    for (const Value* optimizer : are_several ? std::span<const Value* const>(root.items()) : std::span(&one, 1)) {
      const bool is_elsewhere = are_several && optimizer->kind == ValueKind::kNone;
      optimizers.push_back(read_optimizer(*optimizer));
      if (optimizers.back().empty() && !is_elsewhere) return {};
    }
    return optimizers;
  }

 private:
  /// {0: {dtypes: states}, 1: ..., "buckets_coalesced": True}
  std::vector<FlatStates> read_optimizer(const Value& optimizer) {
    std::vector<FlatStates> buffers;
    for (const auto [number, by_dtype] : ItemPairs(optimizer)) {
      if (number->kind != ValueKind::kInt) continue;
      const std::span<Value*> dtypes = mapping_items(*by_dtype);
      if (number->number != std::ssize(buffers) || dtypes.size() != 2) return {};
      buffers.push_back(read_states(*dtypes[1]));
      if (buffers.back().empty()) return {};
    }
    return buffers;
  }

  FlatStates read_states(const Value& value) {
    FlatStates states;
    for (const auto [name, state] : ItemPairs(value)) {
      const std::optional<TensorView> view = name->is_string() ? tensors_.find(*state) : std::nullopt;
      if (!view) continue;
      const bool is_flat = view->shape.size() == 1 && (view->shape[0] <= 1 || view->strides[0] == 1);
      if (!is_flat || states.size() == kMaxStates) return {};
      states[name->text()] = *view;
    }
    return states;
  }

  static constexpr std::size_t kMaxStates = 16;

  TensorFinder tensors_;
};

/// Calls `read`. Adds the file's name to errors.
template <class Read>
void with_file(const Catalog& catalog, std::uint32_t file, const Read& read) {
  try {
    read();
  } catch (Error& error) {
    throw error.in_file(catalog.files[file].path);
  }
}

const std::string& file_of(const Catalog& catalog, const RankStates& rank) { return catalog.files[rank.file].path; }

Error differs(const Catalog& catalog, const RankStates& rank, std::string_view name, FindingKind kind,
              std::string_view how) {
  Error error(ErrorCode::kCorruption, fmt::format("'{}' {}", name, how));
  return error.in_file(file_of(catalog, rank)).of_tensor(name).of_kind(kind);
}

/// Checks that `one` contains all tensors of `other`, with the same shapes and dtypes.
void check_alike(const Catalog& catalog, const RankStates& rank, const ChunkStates& one, const ChunkStates& other) {
  for (const auto& [name, view] : other.tensors.entries()) {
    const TensorView* const same = one.tensors.find(name);
    if (same == nullptr) {
      throw differs(catalog, rank, name, FindingKind::kIndexMismatch, "is stored by only some ranks");
    }
    if (same->shape == view.shape && same->dtype == view.dtype) continue;
    throw differs(catalog, rank, name, FindingKind::kShapeMismatch, "has parts of different shapes or dtypes")
        .expected(fmt::format("{} {}", dtype_name(same->dtype), to_string(same->shape)))
        .found(fmt::format("{} {}", dtype_name(view.dtype), to_string(view.shape)));
  }
}

void check_layers(const Catalog& catalog, const RankStates& rank, const ChunkStates& chunk, const LayerRange& range) {
  HashSet<std::int64_t> found;
  for (const auto& [name, view] : chunk.tensors.entries()) {
    // Such layers are numbered from a different first layer, which no argument records.
    if (name.starts_with("encoder.layers.")) {
      throw Error(ErrorCode::kUnsupported, fmt::format("cannot join '{}': only decoders are joined", name))
          .in_file(file_of(catalog, rank))
          .of_tensor(name);
    }
    const std::optional<std::int64_t> layer = layer_in(name);
    if (!layer) continue;
    found.insert(*layer);
    if (*layer < range.count) continue;
    throw Error(ErrorCode::kCorruption, fmt::format("the stage of this file does not have the layer of '{}'", name))
        .in_file(file_of(catalog, rank))
        .of_tensor(name)
        .of_kind(FindingKind::kIndexMismatch)
        .expected(fmt::format("less than {} layers", range.count));
  }
  if (std::ssize(found.keys()) == range.count) return;
  throw Error(ErrorCode::kCorruption, "the file does not contain all layers of its stage")
      .in_file(file_of(catalog, rank))
      .of_kind(FindingKind::kGap)
      .expected(range.count)
      .found(std::ssize(found.keys()));
}

/// Checks that the files were written at one step, and agree on how the model is distributed.
void check_one_save(const Catalog& catalog, const Save& save) {
  const RankStates& first = save.ranks.front();
  ValueEquality equality({.budget = catalog.arena->budget().get()});
  for (const RankStates& rank : std::span(save.ranks).subspan(1)) {
    for (const std::string_view key : {"iteration", "checkpoint_version"}) {
      const Value* const one = find_key(*first.root, key);
      const Value* const other = find_key(*rank.root, key);
      const bool are_equal = one == nullptr ? other == nullptr : other != nullptr && equality.is_equal(*one, *other);
      if (are_equal) continue;
      throw Error(ErrorCode::kCorruption, fmt::format("the files are of different saves: {} differs", key))
          .in_file(file_of(catalog, rank))
          .of_kind(FindingKind::kMixedSave);
    }
    if (read_arguments(arguments_of(*rank.root)) == save.arguments) continue;
    throw Error(ErrorCode::kCorruption,
                "the files are of different saves: their arguments distribute the model differently")
        .in_file(file_of(catalog, rank))
        .of_kind(FindingKind::kMixedSave);
  }
}

/// Checks the order of the writers. Processes are numbered by tensor, then expert, then pipeline ranks, with other
/// kinds in between. Converters write all files from one process.
void check_writers(const Catalog& catalog, const Save& save) {
  std::vector<std::int64_t> writers;
  for (const RankStates& rank : save.ranks) {
    const std::optional<std::int64_t> writer = writer_of(arguments_of(*rank.root));
    if (!writer) return;
    writers.push_back(*writer);
  }
  if (std::ranges::adjacent_find(writers, std::ranges::not_equal_to()) == writers.end()) return;
  const auto wrong = std::ranges::adjacent_find(writers, std::ranges::greater_equal());
  if (wrong == writers.end()) return;
  const auto at = static_cast<std::size_t>(wrong - writers.begin());
  throw Error(ErrorCode::kCorruption, fmt::format("the file of process {} comes after that of process {}, {}",
                                                  writers[at + 1], writers[at], file_of(catalog, save.ranks[at])))
      .in_file(file_of(catalog, save.ranks[at + 1]))
      .of_kind(FindingKind::kRankMismatch)
      .because("per-rank files were exchanged or copied: `rank` in their arguments is the rank that wrote them");
}

}  // namespace

bool is_save_folder(const SourceStore& store, const std::string& path) {
  if (!rank_folders(store, path).empty()) return true;
  const std::string iteration = tracked_iteration(store, path);
  return !iteration.empty() && !rank_folders(store, join_path(path, iteration)).empty();
}

SaveFolder find_save_folder(const Source& source) {
  const SourceStore& store = *source.store;
  const std::string& path = source.paths.front();
  if (!is_one_folder(source)) {
    throw Error(ErrorCode::kUnsupported, "cannot read single files of a Megatron-LM save")
        .in_file(path)
        .hint("pass its folder");
  }
  SaveFolder save{path, {}, rank_folders(store, path)};
  const std::string iteration = save.ranks.empty() ? tracked_iteration(store, path) : std::string();
  if (!iteration.empty()) {
    save = {path, iteration + "/", rank_folders(store, join_path(path, iteration))};
    for (std::string& rank : save.ranks) rank.insert(0, save.prefix);
  }
  if (save.ranks.empty()) {
    throw Error(ErrorCode::kNotFound, "the folder does not contain Megatron-LM's folders of ranks")
        .in_file(join_path(save.path, save.prefix))
        .of_kind(FindingKind::kMissingFile)
        .expected("mp_rank_00 or mp_rank_00_000");
  }
  return save;
}

void for_each_rank(const Arguments& arguments, const std::function<void(const Coordinates& rank)>& visit) {
  for (std::int64_t pipeline = 0; pipeline < arguments.pipeline; ++pipeline) {
    for (std::int64_t expert = 0; expert < arguments.expert; ++expert) {
      for (std::int64_t tensor = 0; tensor < arguments.tensor; ++tensor) visit({tensor, pipeline, expert});
    }
  }
}

std::string folder_of(const Coordinates& rank, const Arguments& arguments) {
  std::string name = fmt::format("{}{:02}", kRankFolder, rank.tensor);
  if (arguments.pipeline > 1) name += fmt::format("_{:03}", rank.pipeline);
  if (arguments.expert > 1) name += fmt::format("_{:03}", rank.expert);
  return name;
}

RankStates open_rank(Catalog& catalog, torch_save::SavedFiles& files, const std::string& folder) {
  RankStates states;
  states.file = static_cast<std::uint32_t>(catalog.files.size());
  states.root = files.add(join_path(folder, kModelFile));
  with_file(catalog, states.file, [&] {
    if (!is_mapping(*states.root)) throw malformed("states", "they are not a dict").found(type_name(*states.root));
  });
  return states;
}

std::string chunk_key(std::int64_t chunk, std::int64_t chunks) {
  return chunks == 1 ? "model" : fmt::format("model{}", chunk);
}

void read_chunks(Catalog& catalog, RankStates& states, std::int64_t chunks) {
  with_file(catalog, states.file, [&] {
    HashMap<std::string_view, Value*> parts;
    for (const auto [name, part] : ItemPairs(*states.root)) {
      if (text_or_empty(*name).starts_with("model")) parts[name->text()] = part;
    }
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::string key = chunk_key(i, chunks);
      Value** const model = parts.find(key);
      if (model == nullptr) throw malformed(key, "it is missing");
      ChunkReader(*catalog.arena, states.chunks.emplace_back()).read(**model);
    }
    const std::string next = fmt::format("model{}", chunks);
    if (!parts.contains(next)) return;
    throw malformed(next, fmt::format("according to the arguments, a rank has {} of them", chunks));
  });
}

OptimizerStates open_optimizer(Catalog& catalog, torch_save::SavedFiles& files, const std::string& folder) {
  OptimizerStates states;
  states.file = static_cast<std::uint32_t>(catalog.files.size());
  const Value* const root = files.add(join_path(folder, kOptimizerFile));
  if (is_mapping(*root) && find_key(*root, "args") != nullptr) {
    throw Error(ErrorCode::kCorruption, "the file contains a rank's model instead of its optimizer's states")
        .in_file(catalog.files[states.file].path)
        .of_kind(FindingKind::kRankMismatch)
        .because(fmt::format("it is a copy of a file {}", kModelFile));
  }
  with_file(catalog, states.file, [&] { states.optimizers = FlatReader(*catalog.arena).read(*root); });
  return states;
}

std::size_t Save::first_rank(std::int64_t stage) const {
  return static_cast<std::size_t>(stage * arguments.tensor * arguments.expert);
}

std::span<const RankStates> Save::ranks_of(std::int64_t stage) const {
  return std::span(ranks).subspan(first_rank(stage), first_rank(1));
}

void check_folders(const SaveFolder& folder, const Arguments& arguments, std::optional<std::int64_t> ranks_expected) {
  const std::int64_t found = std::ssize(folder.ranks);
  if (ranks_expected && *ranks_expected != found) {
    throw Error(ErrorCode::kCorruption, "the save is from a different number of ranks")
        .in_file(folder.path)
        .of_kind(FindingKind::kWorldSizeMismatch)
        .expected(*ranks_expected)
        .found(found);
  }
  std::vector<std::string> expected;
  for_each_rank(arguments, [&](const Coordinates& rank) {
    expected.push_back(folder.prefix + folder_of(rank, arguments));
    if (std::ranges::binary_search(folder.ranks, expected.back())) return;
    throw Error(ErrorCode::kNotFound, "the folder of a rank is missing")
        .in_file(join_path(folder.path, expected.back()))
        .of_kind(FindingKind::kMissingFile);
  });
  std::ranges::sort(expected);
  for (const std::string& name : folder.ranks) {
    if (std::ranges::binary_search(expected, name)) continue;
    throw Error(ErrorCode::kCorruption, "no rank in the saved arguments has this folder")
        .in_file(join_path(folder.path, name))
        .of_kind(FindingKind::kExtraFile)
        .expected(fmt::format("{} x {} x {} ranks (tensor, pipeline, expert)", arguments.tensor, arguments.pipeline,
                              arguments.expert));
  }
}

LayerRange layers_of(const Catalog& catalog, const Save& save, std::int64_t stage, std::int64_t chunk) {
  if (const auto range = layers_of(save.arguments.stages, stage, chunk)) return *range;
  throw pickle::malformed("args", "they do not spread their layers evenly over pipeline stages")
      .in_file(file_of(catalog, save.ranks.front()))
      .found(save.arguments.stages.layers);
}

void check_save(const Catalog& catalog, const Save& save) {
  check_one_save(catalog, save);
  check_writers(catalog, save);
  for (std::int64_t stage = 0; stage < save.arguments.pipeline; ++stage) {
    const std::span<const RankStates> ranks = save.ranks_of(stage);
    for (std::size_t chunk = 0; chunk < ranks.front().chunks.size(); ++chunk) {
      const ChunkStates& first = ranks.front().chunks[chunk];
      for (const RankStates& rank : ranks.subspan(1)) {
        check_alike(catalog, rank, first, rank.chunks[chunk]);
        check_alike(catalog, ranks.front(), rank.chunks[chunk], first);
      }
      check_layers(catalog, ranks.front(), first, layers_of(catalog, save, stage, static_cast<std::int64_t>(chunk)));
    }
  }
}

}  // namespace shard::megatron
