#include "formats/megatron/arguments.h"

#include <fmt/format.h>

#include <string_view>

#include "formats/parts/pickle/attributes.h"
#include "libshard/core/error.h"

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

constexpr std::int64_t kMostRanks = 1 << 20, kMostLayers = 1 << 20, kMostRows = std::int64_t{1} << 40;

std::optional<std::int64_t> optional_number(const Value& arguments, std::string_view name, std::int64_t most) {
  const Value* const value = find_value(arguments, name);
  if (value == nullptr) return std::nullopt;
  const std::int64_t number = pickle::natural(*value, name);
  if (number > most) throw pickle::malformed(name, fmt::format("it is more than {}", most)).found(number);
  return number;
}

/// A degree of parallelism; 1 in saves of versions that did not have it.
std::int64_t degree(const Value& arguments, std::string_view name) {
  const std::int64_t number = optional_number(arguments, name, kMostRanks).value_or(1);
  if (number == 0) throw pickle::malformed(name, "it is 0");
  return number;
}

bool flag(const Value& arguments, std::string_view name) {
  const Value* const value = find_value(arguments, name);
  return value != nullptr && pickle::boolean(*value, name);
}

Error refused(std::string_view what, std::string_view argument) {
  return Error(ErrorCode::kUnsupported, fmt::format("cannot join a Megatron-LM save {}", what))
      .because(fmt::format("it was made with {}", argument));
}

void refuse_kinds(const Value& arguments, const Arguments& read) {
  if (read.pipeline > 1) {
    for (const std::string_view list :
         {"pipeline_model_parallel_layout", "hybrid_override_pattern", "hybrid_layer_pattern"}) {
      if (find_value(arguments, list) != nullptr) throw refused("whose layers are spread by a list", list);
    }
    if (flag(arguments, "standalone_embedding_stage")) {
      throw refused("with a stage for its embedding", "standalone_embedding_stage");
    }
  }
  const std::int64_t expert_tensor =
      optional_number(arguments, "expert_tensor_parallel_size", kMostRanks).value_or(read.tensor);
  if (read.experts > 0 && expert_tensor != read.tensor) {
    throw refused("whose experts are sharded over different ranks from the rest", "expert_tensor_parallel_size");
  }
}

}  // namespace

std::optional<LayerRange> layers_of(const Stages& stages, std::int64_t stage, std::int64_t chunk) {
  return stages.first || stages.last ? uneven_range(stages, stage, chunk) : even_range(stages, stage, chunk);
}

std::optional<std::int64_t> writer_of(const Value& arguments) { return optional_number(arguments, "rank", kMostRanks); }

Value& arguments_of(const Value& root) {
  Value* const args = find_key(root, "args");
  if (args == nullptr) throw pickle::malformed("args", "it is missing");
  pickle::need_class(*args, "Namespace");
  Value* const state = args->state();
  if (state == nullptr || !is_mapping(*state)) throw pickle::malformed("args", "it has no attributes");
  return *state;
}

Arguments read_arguments(const Value& arguments) {
  Arguments read;
  read.tensor = degree(arguments, "tensor_model_parallel_size");
  read.pipeline = degree(arguments, "pipeline_model_parallel_size");
  read.expert = degree(arguments, "expert_model_parallel_size");
  const std::optional<std::int64_t> layers = optional_number(arguments, "num_layers", kMostLayers);
  if (!layers) throw pickle::malformed("num_layers", "it is missing");
  read.stages.layers = *layers;
  read.stages.stages = read.pipeline;
  read.stages.chunks = degree(arguments, "virtual_pipeline_model_parallel_size");
  read.stages.first = optional_number(arguments, "decoder_first_pipeline_num_layers", kMostLayers);
  read.stages.last = optional_number(arguments, "decoder_last_pipeline_num_layers", kMostLayers);
  read.stages.embedding_counts = flag(arguments, "account_for_embedding_in_pipeline_split");
  read.stages.loss_counts = flag(arguments, "account_for_loss_in_pipeline_split");
  read.experts = optional_number(arguments, "num_experts", kMostRanks).value_or(0);
  read.query_rows = optional_number(arguments, "q_lora_rank", kMostRows).value_or(0);
  if (const auto rows = optional_number(arguments, "kv_lora_rank", kMostRows)) {
    read.key_rows = *rows + optional_number(arguments, "qk_pos_emb_head_dim", kMostRows).value_or(0);
  }
  read.gated = flag(arguments, "swiglu") || flag(arguments, "quick_geglu");
  const Value* const untied = find_value(arguments, "untie_embeddings_and_output_weights");
  read.tied = untied != nullptr && !pickle::boolean(*untied, "untie_embeddings_and_output_weights");
  if (read.experts % read.expert != 0) {
    throw pickle::malformed("num_experts", fmt::format("they are not spread evenly over {} ranks", read.expert))
        .found(read.experts);
  }
  refuse_kinds(arguments, read);
  return read;
}

}  // namespace shard::megatron
