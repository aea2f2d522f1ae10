#include "formats/megatron/stages.h"

namespace shard::megatron {

namespace {

/// Counts the embedding and the loss as the first and the last one of all layers.
std::optional<LayerRange> even_range(const Stages& all, std::int64_t stage, std::int64_t chunk) {
  const std::int64_t slots = all.layers + (all.embedding_counts ? 1 : 0) + (all.loss_counts ? 1 : 0);
  const std::int64_t parts = all.stages * all.chunks;
  if (slots % parts != 0) return std::nullopt;
  const std::int64_t part = chunk * all.stages + stage, each = slots / parts;
  LayerRange range{part * each, each};
  if (all.embedding_counts && part > 0) --range.begin;
  if (all.embedding_counts && part == 0) --range.count;
  if (all.loss_counts && part == parts - 1) --range.count;
  return range.count < 0 ? std::nullopt : std::optional(range);
}

/// The first and the last stage have their own numbers of layers, the stages between them equal numbers.
std::optional<LayerRange> uneven_range(const Stages& all, std::int64_t stage, std::int64_t chunk) {
  const std::int64_t first = all.first.value_or(0), last = all.last.value_or(0), between = all.layers - first - last;
  const std::int64_t stages = all.stages - (all.first ? 1 : 0) - (all.last ? 1 : 0);
  const bool is_first = stage == 0 && all.first, is_last = stage == all.stages - 1 && all.last;
  if (stages < 0 || between < 0 || (stages == 0 ? between != 0 : between % stages != 0)) return std::nullopt;
  const std::int64_t each = stages == 0 ? 0 : between / stages;
  if (first % all.chunks != 0 || last % all.chunks != 0 || each % all.chunks != 0) return std::nullopt;
  const std::int64_t before = stage == 0 ? 0 : first + (stage - (all.first ? 1 : 0)) * each;
  // Chunk c of all stages precedes chunk c + 1 of all stages. Each chunk has layers / chunks layers in total, and a
  // stage starts in it after the layers of the stages before, divided by the chunks in the same way.
  return LayerRange{(chunk * all.layers + before) / all.chunks, (is_first  ? first
                                                                 : is_last ? last
                                                                           : each) /
                                                                    all.chunks};
}

}  // namespace

std::optional<LayerRange> layers_of(const Stages& stages, std::int64_t stage, std::int64_t chunk) {
  return stages.first || stages.last ? uneven_range(stages, stage, chunk) : even_range(stages, stage, chunk);
}

}  // namespace shard::megatron
