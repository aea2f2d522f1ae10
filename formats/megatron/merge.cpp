#include "formats/megatron/merge.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/megatron/flat_states.h"
#include "formats/megatron/indexed_states.h"
#include "formats/megatron/wholes.h"
#include "formats/torch/load_tree.h"
#include "libshard/core/plural.h"

namespace shard::megatron {

namespace {

class Merge {
 public:
  Merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save)
      : catalog_(catalog), arena_(*catalog.arena), files_(files), save_(save), wholes_(catalog, files, save) {}

  void run() {
    for (std::int64_t stage = 0; stage < save_.arguments.pipeline; ++stage) {
      for (std::size_t chunk = 0; chunk < save_.ranks.front().chunks.size(); ++chunk) add_chunk(stage, chunk);
    }
    add_optimizer();
    wholes_.finish();
    add_objects();
    warn_of_hidden();
  }

 private:
  void add_chunk(std::int64_t stage, std::size_t chunk) {
    const ChunkStates& first = save_.ranks_of(stage).front().chunks[chunk];
    const auto chunk_number = static_cast<std::int64_t>(chunk);
    for (const auto& [name, ignored] : first.tensors.entries()) {
      const Meaning meaning = wholes_.meaning(name, stage, chunk_number);
      const std::string_view whole = arena_.copy(meaning.name);
      for (std::size_t rank = save_.first_rank(stage); rank < save_.first_rank(stage + 1); ++rank) {
        const RankStates& states = save_.ranks[rank];
        const TensorView& view = *states.chunks[chunk].tensors.find(name);
        wholes_.add(whole, {}, meaning, rank, wholes_.store(rank, states.file, view),
                    {{view.shape.begin(), view.shape.end()}, {view.strides.begin(), view.strides.end()}, view.first});
      }
    }
    for (const auto& [name, value] : first.objects.entries()) {
      arena_.charge(Charge::kEntries);
      catalog_.objects.push_back({arena_.copy(wholes_.counted(name, stage, chunk_number)), {}, value, -1});
    }
  }

  void add_optimizer() {
    if (!save_.optimizers.empty() && !add_flat_states(wholes_, arena_, save_)) {
      catalog_.warnings.push_back(
          fmt::format("skipped the states in {}: the files do not record where parameters are stored", kOptimizerFile));
    }
    if (has_indexed_states(save_.ranks.front()) && !add_indexed_states(wholes_, arena_, save_)) {
      catalog_.warnings.emplace_back("the optimizer's states are left out: nothing says of which parameters they are");
    }
  }

  /// Adds the content of rank 0's file other than its part of the model. Random states are tensors that differ between
  /// ranks.
  void add_objects() {
    const RankStates& first = save_.ranks.front();
    HashSet<std::string> chunks;
    for (std::int64_t i = 0; i < std::ssize(first.chunks); ++i) chunks.insert(chunk_key(i, std::ssize(first.chunks)));
    std::vector<Value*> items;
    const std::span<Value*> all = mapping_items(*first.root);
    bool has_random = false;
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
      const std::string_view key = all[i]->is_string() ? all[i]->text() : std::string_view();
      has_random = has_random || key == "rng_state";
      if (chunks.contains(key) || key == "rng_state") continue;
      Value* value = all[i + 1];
      if (key == "args") value = &arguments_of(*first.root);
      if (key == "optimizer" && has_indexed_states(first)) value = without_indexed_states(arena_, first);
      items.insert(items.end(), {all[i], value});
    }
    if (has_random) catalog_.warnings.emplace_back("skipped the ranks' random states (rng_state)");
    torch_save::TreeLoader(catalog_, files_, first.file).load(*make_list(arena_, ValueKind::kDict, items));
  }

  void warn_of_hidden() {
    std::int64_t hidden = 0;
    for (const RankStates& rank : save_.ranks) {
      for (const ChunkStates& chunk : rank.chunks) hidden += chunk.hidden;
    }
    if (hidden == 0) return;
    catalog_.warnings.push_back(
        fmt::format("extra states of modules (_extra_state) are left out: {}", plural(hidden, "tensor")));
  }

  Catalog& catalog_;
  Arena& arena_;
  torch_save::SavedFiles& files_;
  const Save& save_;
  Wholes wholes_;
};

}  // namespace

void merge(Catalog& catalog, torch_save::SavedFiles& files, const Save& save) { Merge(catalog, files, save).run(); }

}  // namespace shard::megatron
