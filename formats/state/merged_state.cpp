#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "formats/parts/pickle/pickle.h"
#include "formats/state/rank_state.h"
#include "libshard/catalog/tree.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"

namespace shard::checkpoint {

namespace {

using Sizes = std::vector<std::int64_t>;

Error contradiction(std::string_view name, const std::string& message, int rank) {
  Error error(ErrorCode::kInvalidArgument, "ranks contradict one another: " + message);
  error.of_tensor(name).of_rank(rank);
  return error;
}

bool holds_tensor(const Value& value) {
  if (value.kind == ValueKind::kTensor) return true;
  return std::ranges::any_of(container_items(value), [](const Value* item) { return holds_tensor(*item); });
}

/// Converts dicts of the keys 0, 1, 2, ... to lists, in a tree of dicts.
void number_lists(Arena& arena, Value& value) {
  if (value.kind != ValueKind::kDict) return;
  const std::span<Value*> items = value.items();
  for (const auto [key, item] : ItemPairs(items)) number_lists(arena, *item);
  std::vector<Value*> list(items.size() / 2, nullptr);
  for (const auto [key, item] : ItemPairs(items)) {
    const bool is_index = key->kind == ValueKind::kInt && key->number >= 0 && std::cmp_less(key->number, list.size());
    if (!is_index || list[static_cast<std::size_t>(key->number)] != nullptr) return;
    list[static_cast<std::size_t>(key->number)] = item;
  }
  if (!list.empty()) value = *make_list(arena, ValueKind::kList, list);
}

/// Joins the trees of ranks.
class TreeMerger {
 public:
  struct Holder {
    int rank;
    std::uint32_t tensor;  ///< An index into that rank's state.
    friend bool operator==(const Holder&, const Holder&) = default;
  };

  TreeMerger(Arena& arena, const std::vector<RankState>& ranks) : arena_(arena), ranks_(ranks) {}

  Value* run() {
    Value* root = parse(ranks_[0]);
    for (rank_ = 1; rank_ < std::ssize(ranks_); ++rank_) {
      const RankState& state = ranks_[static_cast<std::size_t>(rank_)];
      if (state.tree != ranks_[0].tree) {
        merge(*root, *parse(state));
      } else {
        for (std::uint32_t i = 0; i < state.tensors.size(); ++i) holders.at(i).push_back({rank_, i});
      }
    }
    return root;
  }

  /// The holders of each kTensor value ever parsed, by number and rank. Rank 0's numbers are those in its state.
  std::vector<std::vector<Holder>> holders;

 private:
  Value* parse(const RankState& state) {
    std::vector<Value*> ids;
    pickle::LoadOptions options;
    options.integer_ids = true;
    options.file = "a rank's state";
    options.allow = pickle::is_known_global;
    options.persistent_ids = &ids;
    const auto tree = std::make_shared<const std::string>(state.tree);
    arena_.adopt(tree);
    Value* root = pickle::load(arena_, std::as_bytes(std::span(*tree)), options);
    for (Value* id : ids) *id = *make_tensor(arena_, std::ssize(holders) + id->items()[0]->number);
    for (std::uint32_t i = 0; i < state.tensors.size(); ++i) holders.push_back({{rank_, i}});
    return root;
  }

  void merge(Value& into, Value& from) {
    if (into.kind == ValueKind::kTensor && from.kind == ValueKind::kTensor) {
      add_holder(into, from);
    } else if (is_mapping(into) && is_mapping(from)) {
      merge_dicts(into, from);
    } else if (is_container(into) && into.kind == from.kind && into.items().size() == from.items().size()) {
      for (std::size_t i = 0; i < into.items().size(); ++i) merge_at(index_part(i), *into.items()[i], *from.items()[i]);
    } else if (holds_tensor(into) || holds_tensor(from)) {
      throw contradiction(position_.name(), "a value contains tensors on one rank but not on another", rank_)
          .expected(type_name(into))
          .found(type_name(from));
    }
  }

  void merge_at(const PathPart& part, Value& into, Value& from) {
    position_.push(part);
    merge(into, from);
    position_.pop();
  }

  /// Keys that are missing in `into` are added at its end.
  void merge_dicts(Value& into, Value& from) {
    const std::span<Value*> own = mapping_items(into);
    HashMap<std::string, Value*> known;
    for (const auto [key, value] : ItemPairs(own)) known.try_emplace(label(*key), value);
    std::vector<Value*> items(own.begin(), own.end());
    for (const auto [key, value] : ItemPairs(from)) {
      const auto [first, is_new] = known.try_emplace(label(*key), value);
      if (is_new) {
        items.insert(items.end(), {key, value});
      } else {
        merge_at(key_part(arena_, *key), *first, *value);
      }
    }
    if (items.size() == own.size()) return;
    const std::span<Value*> joined = make_list(arena_, ValueKind::kDict, items)->items();
    if (into.kind == ValueKind::kDict) {
      into.set_items(joined);
    } else {
      extra_of(arena_, into).dict_items = joined;
    }
  }

  std::string label(const Value& key) {
    const PathPart part = key_part(arena_, key);
    return part.is_index ? fmt::format("{}", part.index) : fmt::format("'{}", part.key());
  }

  /// A value with several names is visited several times.
  void add_holder(const Value& into, const Value& from) {
    std::vector<Holder>& known = holders.at(static_cast<std::size_t>(into.number));
    const Holder holder = holders.at(static_cast<std::size_t>(from.number)).front();
    if (known.back() == holder) return;
    if (known.back().rank == rank_) {
      throw contradiction(position_.name(), "two names share a tensor on one rank but not on another", rank_);
    }
    known.push_back(holder);
  }

  Arena& arena_;
  const std::vector<RankState>& ranks_;
  int rank_ = 0;
  TreePosition position_;
};

class CatalogMaker {
 public:
  CatalogMaker(const std::vector<RankState>& ranks, int own_rank, const MergeOptions& options)
      : ranks_(ranks), own_rank_(own_rank), options_(options) {
    for (const RankState& rank : ranks_) bytes_.push_back(sharded_bytes(rank));
  }

  MergedState run() {
    Catalog& catalog = merged_.catalog;
    catalog.format = "memory";
    catalog.world_size = std::ssize(ranks_);
    for (int rank = 0; rank < std::ssize(ranks_); ++rank) {
      catalog.files.push_back({fmt::format("memory of rank {}", rank), 0, rank});
    }
    TreeMerger trees(*catalog.arena, ranks_);
    catalog.root = trees.run();
    if (options_.numbered_lists) number_lists(*catalog.arena, *catalog.root);
    visit_leaves(
        *catalog.arena, *catalog.root, [](const Value& value) { return value.kind == ValueKind::kTensor; },
        [&](const TreeLeaf& leaf) { add_leaf(leaf, trees.holders); });
    for (const auto& [value, index] : numbered_) value->number = index;
    finish();
    return std::move(merged_);
  }

 private:
  using Holder = TreeMerger::Holder;

  const TensorInfo& info(const Holder& holder) const {
    return ranks_[static_cast<std::size_t>(holder.rank)].tensors.at(holder.tensor);
  }

  void add_leaf(const TreeLeaf& leaf, const std::vector<std::vector<Holder>>& holders) {
    if (leaf.value == merged_.catalog.root) return;  // The state is empty.
    const Path path = compact_path(leaf.path, leaf.name);
    if (leaf.value->kind != ValueKind::kTensor) {
      merged_.catalog.objects.push_back({leaf.name, path, leaf.value, -1});
      return;
    }
    const auto index = static_cast<std::uint32_t>(merged_.catalog.tensors.size());
    const auto [known, is_new] = tensors_.try_emplace(leaf.value->number, index);
    numbered_.emplace_back(leaf.value, known);
    if (!is_new) return add_again(leaf.name, path, known);
    add_tensor(leaf.name, path, holders.at(static_cast<std::size_t>(leaf.value->number)));
  }

  /// Adds another name of a tensor, with the same storages.
  void add_again(std::string_view name, Path path, std::uint32_t first) {
    Tensor tensor = merged_.catalog.tensors[first];
    tensor.name = name;
    tensor.path = path;
    builder_.begin(tensor);
    builder_.add_alias_chunks(first);
  }

  void add_tensor(std::string_view name, Path path, const std::vector<Holder>& holders) {
    const TensorInfo& first = info(holders.front());
    builder_.begin(name, path, first.dtype, merged_.catalog.arena->dims(first.shape));
    if (options_.keeps_shardings && first.sharding) builder_.tensor().sharding = index_of(*first.sharding);
    for (const Holder& holder : holders) check_alike(name, first, info(holder), holder.rank);
    add_boxes(holders);
  }

  static void check_alike(std::string_view name, const TensorInfo& a, const TensorInfo& b, int rank) {
    const auto check = [&](bool is_same, const std::string& what, std::string_view expected, std::string_view found) {
      if (is_same) return;
      throw contradiction(name, fmt::format("'{}' has {}", name, what), rank).expected(expected).found(found);
    };
    const auto kind = [](const TensorInfo& info) { return info.is_sharded ? "a tensor in shards" : "a plain tensor"; };
    check(a.is_sharded == b.is_sharded, "two kinds", kind(a), kind(b));
    check(a.dtype == b.dtype, "two dtypes", dtype_name(a.dtype), dtype_name(b.dtype));
    check(a.shape == b.shape, "two shapes", to_string(a.shape), to_string(b.shape));
  }

  std::uint32_t index_of(const Sharding& sharding) {
    std::vector<Sharding>& known = merged_.catalog.shardings;
    const auto found = std::ranges::find(known, sharding);
    const auto index = static_cast<std::uint32_t>(found - known.begin());
    if (found == known.end()) known.push_back(sharding);
    return index;
  }

  /// Bytes that each rank must write, apart from tensors that several ranks have.
  static std::int64_t sharded_bytes(const RankState& rank) {
    std::int64_t bytes = 0;
    for (const TensorInfo& tensor : rank.tensors) {
      if (!tensor.is_sharded) continue;
      for (const HeldBox& box : tensor.boxes) bytes = checked_add(bytes, bytes_of(tensor, box));
    }
    return bytes;
  }
  static std::int64_t bytes_of(const TensorInfo& tensor, const HeldBox& box) {
    return checked_bytes(checked_numel(box.sizes), tensor.dtype);
  }

  /// The ranks that have a box, and its number on each.
  using Replicas = std::vector<std::pair<Holder, std::uint32_t>>;

  /// Holders are in the order of ranks. Boxes without elements do not count as replicas.
  std::vector<Replicas> boxes_of(const std::vector<Holder>& holders) const {
    std::vector<Replicas> boxes;
    std::map<std::pair<Sizes, Sizes>, std::size_t> known;
    for (const Holder& holder : holders) {
      const TensorInfo& held = info(holder);
      for (std::uint32_t i = 0; i < held.boxes.size(); ++i) {
        const HeldBox& box = held.boxes[i];
        const bool is_own = held.is_sharded && (options_.keeps_replicas || checked_numel(box.sizes) == 0);
        const auto place =
            is_own ? boxes.size() : known.try_emplace({box.offsets, box.sizes}, boxes.size()).first->second;
        if (place == boxes.size()) boxes.emplace_back();
        boxes[place].emplace_back(holder, i);
      }
    }
    return boxes;
  }

  /// Chooses the replica on the rank with the fewest bytes to write.
  void add_boxes(const std::vector<Holder>& holders) {
    for (const Replicas& replicas : boxes_of(holders)) {
      const auto& [holder, i] = *std::ranges::min_element(
          replicas, {}, [this](const auto& each) { return bytes_[static_cast<std::size_t>(each.first.rank)]; });
      const TensorInfo& held = info(holder);
      add_box(held, held.boxes[i], holder.rank);
      if (holder.rank == own_rank_) merged_.held.push_back({holder.tensor, i});
      if (replicas.size() == 1 && held.is_sharded) continue;  // Already counted.
      std::int64_t& bytes = bytes_[static_cast<std::size_t>(holder.rank)];
      bytes = checked_add(bytes, bytes_of(held, held.boxes[i]));
    }
  }

  void add_box(const TensorInfo& held, const HeldBox& box, int rank) {
    add_packed_chunk(builder_, box.offsets, box.sizes,
                     {.shape = {},
                      .strides = {},
                      .storage = add_storage(held, bytes_of(held, box), rank),
                      .rank = rank,
                      .dtype = held.dtype,
                      .requires_grad = held.requires_grad});
  }

  std::uint32_t add_storage(const TensorInfo& held, std::int64_t bytes, int rank) {
    Catalog& catalog = merged_.catalog;
    const auto location = std::ranges::find(catalog.locations, held.location) - catalog.locations.begin();
    if (location == std::ssize(catalog.locations)) catalog.locations.push_back(held.location);
    File& file = catalog.files[static_cast<std::size_t>(rank)];
    const std::int64_t offset = file.bytes;
    file.bytes = checked_add(file.bytes, bytes);
    return builder_.add_storage({.offset = offset,
                                 .bytes = bytes,
                                 .file = static_cast<std::uint32_t>(rank),
                                 .location = static_cast<std::uint16_t>(location)});
  }

  /// Converts an error that would mean damage in a file to an error of the ranks.
  void finish() {
    try {
      validate_catalog(merged_.catalog);
    } catch (const Error& error) {
      throw Error(ErrorCode::kInvalidArgument, error.what())
          .of_tensor(error.tensor())
          .of_kind(error.kind())
          .because(error.why().empty() ? "the shards of all ranks must form one tensor" : error.why());
    }
  }

  const std::vector<RankState>& ranks_;
  const int own_rank_;
  const MergeOptions& options_;
  std::vector<std::int64_t> bytes_;  ///< Bytes to write so far, by rank.
  MergedState merged_;
  CatalogBuilder builder_{merged_.catalog};
  HashMap<std::int64_t, std::uint32_t> tensors_;            ///< The tensors by their numbers in the tree.
  std::vector<std::pair<Value*, std::uint32_t>> numbered_;  ///< The tree's kTensor values, with their new numbers.
};

}  // namespace

void add_packed_chunk(CatalogBuilder& builder, std::span<const std::int64_t> offsets,
                      std::span<const std::int64_t> sizes, StoredTensor stored) {
  Sizes strides(sizes.size());
  row_major_strides(sizes, strides);
  Arena& arena = *builder.catalog().arena;
  stored.shape = arena.dims(sizes);
  stored.strides = arena.dims(strides);
  builder.add_chunk({arena.dims(offsets), stored.shape, stored.strides, 0, builder.add_stored(stored)});
}

MergedState merge_states(const std::vector<RankState>& ranks, int own_rank, const MergeOptions& options) {
  return CatalogMaker(ranks, own_rank, options).run();
}

}  // namespace shard::checkpoint
