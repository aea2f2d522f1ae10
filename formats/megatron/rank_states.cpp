#include "formats/megatron/rank_states.h"

#include <fmt/format.h>

#include "formats/megatron/names.h"
#include "formats/megatron/old_names.h"
#include "formats/parts/pickle/attributes.h"
#include "formats/torch/tensor_finder.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::megatron {

namespace {

using pickle::malformed;
using torch_save::TensorFinder;

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
    throw Error(ErrorCode::kCorruption, fmt::format("the model holds '{}' twice", name))
        .of_tensor(name)
        .of_kind(FindingKind::kDuplicateName);
  }

  std::string_view present(std::string_view name) {
    if (!is_old_name(name)) return name;
    if (const std::optional<std::string> renamed = present_name(name)) return arena_.copy(*renamed);
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot join '{}', which Megatron-Core has no name for", name))
        .of_tensor(name);
  }

  Arena& arena_;
  TensorFinder tensors_;
  ChunkStates& chunk_;
};

/// Reads what a file of the distributed optimizer says; forms that are not known leave nothing.
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
    const std::span<Value*> items = mapping_items(optimizer);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i]->kind != ValueKind::kInt) continue;
      const std::span<Value*> dtypes = mapping_items(*items[i + 1]);
      if (items[i]->number != std::ssize(buffers) || dtypes.size() != 2) return {};
      buffers.push_back(read_states(*dtypes[1]));
      if (buffers.back().empty()) return {};
    }
    return buffers;
  }

  FlatStates read_states(const Value& value) {
    FlatStates states;
    const std::span<Value*> items = mapping_items(value);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const std::optional<TensorView> view = items[i]->is_string() ? tensors_.find(*items[i + 1]) : std::nullopt;
      if (!view) continue;
      const bool is_flat = view->shape.size() == 1 && (view->shape[0] <= 1 || view->strides[0] == 1);
      if (!is_flat || states.size() == kMaxStates) return {};
      states[items[i]->text()] = *view;
    }
    return states;
  }

  static constexpr std::size_t kMaxStates = 16;

  TensorFinder tensors_;
};

/// Calls `read`, naming the file in what is thrown.
template <class Read>
void with_file(const Catalog& catalog, std::uint32_t file, const Read& read) {
  try {
    read();
  } catch (Error& error) {
    throw error.in_file(catalog.files[file].path);
  }
}

}  // namespace

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
    const std::span<Value*> items = mapping_items(*states.root);
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      if (items[i]->is_string() && items[i]->text().starts_with("model")) parts[items[i]->text()] = items[i + 1];
    }
    for (std::int64_t i = 0; i < chunks; ++i) {
      const std::string key = chunk_key(i, chunks);
      Value** const model = parts.find(key);
      if (model == nullptr) throw malformed(key, "it is not there");
      ChunkReader(*catalog.arena, states.chunks.emplace_back()).read(**model);
    }
    const std::string next = fmt::format("model{}", chunks);
    if (!parts.contains(next)) return;
    throw malformed(next, fmt::format("the arguments say that a rank has {} of them", chunks));
  });
}

OptimizerStates open_optimizer(Catalog& catalog, torch_save::SavedFiles& files, const std::string& folder) {
  OptimizerStates states;
  states.file = static_cast<std::uint32_t>(catalog.files.size());
  const Value* const root = files.add(join_path(folder, kOptimizerFile));
  with_file(catalog, states.file, [&] { states.optimizers = FlatReader(*catalog.arena).read(*root); });
  return states;
}

}  // namespace shard::megatron
