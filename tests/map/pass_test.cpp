/// The engine against the obvious way: matrices that are cut, joined and padded row by row. 12 layouts of one model, as
/// Megatron and vLLM store it, and all 144 ordered pairs between them.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "libshard/core/box.h"
#include "libshard/core/error.h"
#include "libshard/map/documents/model_map.h"
#include "libshard/map/passes/apply.h"
#include "libshard/map/passes/mapped_reader.h"
#include "libshard/map/passes/undo.h"
#include "tests/catalog/build.h"
#include "tests/map/matrices.h"

namespace shard::test {
namespace {

constexpr std::int64_t kLayers = 4, kHeads = 8, kGroups = 4, kHead = 2, kHidden = 6, kInner = 16, kWords = 11;

std::string layer(std::int64_t l, const std::string& rest) { return fmt::format("model.layers.{}.{}", l, rest); }

/// The message of check_scales_follow for FP8 experts, of which the map makes tensors of these names and shapes.
std::string refusal_of_scales(const std::vector<std::pair<std::string, Numbers>>& after) {
  Catalog before, mapped;
  add_tensor(before, "experts.up", {4, 32, 48}, DType::kFloat8E4m3fn);
  add_tensor(before, "experts.up_scale_inv", {4, 2, 3});
  add_tensor(before, "norm.weight", {32});
  for (const auto& [name, shape] : after) add_tensor(mapped, name, shape);
  try {
    check_scales_follow(before, mapped);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
    return error.what();
  }
  return "";
}

TEST(ScalesFollow, AWeightIsNotMovedWithoutItsScales) {
  const std::pair<std::string, Numbers> kept{"experts.up_scale_inv", {4, 2, 3}};
  const std::string message = "cannot map 'experts.up': no rule takes its scales 'experts.up_scale_inv' with it";
  EXPECT_EQ(refusal_of_scales({{"experts.0.up.weight", {32, 48}}, kept}), message);
  EXPECT_EQ(refusal_of_scales({{"experts.up", {4, 48, 32}}, kept}), message);
  EXPECT_EQ(refusal_of_scales({{"experts.up", {4, 32, 48}}, kept}), "");
  EXPECT_EQ(refusal_of_scales({{"experts.up", {4, 48, 32}}, {"experts.up_scale_inv", {4, 3, 2}}}), "");
  EXPECT_EQ(refusal_of_scales({{"experts.0.up.weight", {32, 48}}, {"experts.0.up.weight_scale_inv", {2, 3}}}), "");
}

Model make_model() {
  Model model;
  std::int64_t next = 1;
  const auto add = [&](const std::string& name, std::int64_t rows, std::int64_t columns) {
    model[name] = counted(rows, columns, next);
    next += rows * columns;
  };
  add("model.embed_tokens.weight", kWords, kHidden);
  add("lm_head.weight", kWords, kHidden);
  add("model.norm.weight", kHidden, 1);
  for (std::int64_t l = 0; l < kLayers; ++l) {
    for (const char* kind : {"weight", "bias"}) {
      const std::int64_t columns = std::string(kind) == "weight" ? kHidden : 1;
      add(layer(l, fmt::format("self_attn.q_proj.{}", kind)), kHeads * kHead, columns);
      add(layer(l, fmt::format("self_attn.k_proj.{}", kind)), kGroups * kHead, columns);
      add(layer(l, fmt::format("self_attn.v_proj.{}", kind)), kGroups * kHead, columns);
    }
    add(layer(l, "self_attn.o_proj.weight"), kHidden, kHeads * kHead);
    add(layer(l, "mlp.gate_proj.weight"), kInner, kHidden);
    add(layer(l, "mlp.up_proj.weight"), kInner, kHidden);
    add(layer(l, "mlp.down_proj.weight"), kHidden, kInner);
    add(layer(l, "input_layernorm.weight"), kHidden, 1);
  }
  return model;
}

/// A layout: its document, and the content of each rank by plain loops.
struct Sample {
  std::string name, document;
  std::vector<Model> ranks;
};

// ---- Megatron: rank = pp * TP + tp; groups of q heads with their k and v heads; layers by stage and virtual stage.

constexpr const char* kMegatron = R"J({
  "schema": "shardctl.layout/1", "name": "megatron",
  "vars": {"L": 4, "heads": 8, "kv": 4, "hd": 2, "vocab": 11},
  "mesh": {"pp": PP, "tp": TP},
  "types": {"p": "weight|bias"},
  "index": {"l": {"count": "L", "axis": "pp", SPLIT}},
  "rules": [
    {"id": "embed", "logical": "model.embed_tokens.weight", "stored": "embedding.weight", "on": {"pp": "first"},
     "pad": {"dim": 0, "to": "ceil_to(n, 4*tp)", "true": "vocab"}, "shard": [{"axis": "tp", "dim": 0}]},
    {"id": "head", "logical": "lm_head.weight", "stored": "output_layer.weight", "on": {"pp": "last"},
     "pad": {"dim": 0, "to": "ceil_to(n, 4*tp)", "true": "vocab"}, "shard": [{"axis": "tp", "dim": 0}]},
    {"id": "norm", "logical": "model.norm.weight", "stored": "decoder.final_layernorm.weight", "on": {"pp": "last"}},
    {"id": "qkv", "stored": "model{l_chunk}.layers.{l_local}.linear_qkv.{p}",
     "logical": ["model.layers.{l}.self_attn.q_proj.{p}", "model.layers.{l}.self_attn.k_proj.{p}",
                 "model.layers.{l}.self_attn.v_proj.{p}"],
     "concat": {"dim": 0, "interleave": "kv", "sizes": ["heads*hd", "kv*hd", "kv*hd"]}, "shard": [{"axis": "tp", "dim": 0}]},
    {"id": "proj", "logical": "model.layers.{l}.self_attn.o_proj.weight",
     "stored": "model{l_chunk}.layers.{l_local}.linear_proj.weight", "shard": [{"axis": "tp", "dim": 1}]},
    {"id": "fc1", "logical": ["model.layers.{l}.mlp.gate_proj.weight", "model.layers.{l}.mlp.up_proj.weight"],
     "stored": "model{l_chunk}.layers.{l_local}.linear_fc1.weight",
     "concat": {"dim": 0, "per_segment": true, "sizes": [16, 16]}, "shard": [{"axis": "tp", "dim": 0}]},
    {"id": "fc2", "logical": "model.layers.{l}.mlp.down_proj.weight",
     "stored": "model{l_chunk}.layers.{l_local}.linear_fc2.weight", "shard": [{"axis": "tp", "dim": 1}]},
    {"id": "ln", "logical": "model.layers.{l}.input_layernorm.weight",
     "stored": "model{l_chunk}.layers.{l_local}.input_layernorm.weight"}]})J";

/// Stage, virtual stage and number there of a layer.
struct Place {
  std::int64_t stage, chunk, local;
};

Sample megatron(std::int64_t tp, std::int64_t pp, const std::string& split, const std::vector<Place>& places) {
  const Model model = make_model();
  Sample sample{fmt::format("megatron tp {} pp {} {}", tp, pp, split), kMegatron, {}};
  for (const auto& [word, text] :
       {std::pair<std::string, std::string>{"PP", std::to_string(pp)}, {"TP", std::to_string(tp)}, {"SPLIT", split}}) {
    sample.document.replace(sample.document.find(word), word.size(), text);
  }
  for (std::int64_t rank = 0; rank < tp * pp; ++rank) {
    const std::int64_t stage = rank / tp, t = rank % tp;
    Model stored;
    const auto padded = [&](const std::string& name) {
      const std::int64_t step = 4 * tp, rows = (kWords + step - 1) / step * step;
      return row_part(padded_to(model.at(name), rows), t, tp);
    };
    if (stage == 0) stored["embedding.weight"] = padded("model.embed_tokens.weight");
    if (stage == pp - 1) stored["output_layer.weight"] = padded("lm_head.weight");
    if (stage == pp - 1) stored["decoder.final_layernorm.weight"] = model.at("model.norm.weight");
    for (std::int64_t l = 0; l < kLayers; ++l) {
      const Place& place = places[static_cast<std::size_t>(l)];
      if (place.stage != stage) continue;
      const auto name = [&](const char* rest) {
        return fmt::format("model{}.layers.{}.{}", place.chunk, place.local, rest);
      };
      for (const std::string kind : {"weight", "bias"}) {
        Matrix all;
        for (std::int64_t g = 0; g < kGroups; ++g) {
          append_rows(all, row_part(model.at(layer(l, "self_attn.q_proj." + kind)), g, kGroups));
          append_rows(all, row_part(model.at(layer(l, "self_attn.k_proj." + kind)), g, kGroups));
          append_rows(all, row_part(model.at(layer(l, "self_attn.v_proj." + kind)), g, kGroups));
        }
        stored[name(("linear_qkv." + kind).c_str())] = row_part(all, t, tp);
      }
      stored[name("linear_proj.weight")] = column_part(model.at(layer(l, "self_attn.o_proj.weight")), t, tp);
      Matrix fc1 = row_part(model.at(layer(l, "mlp.gate_proj.weight")), t, tp);
      append_rows(fc1, row_part(model.at(layer(l, "mlp.up_proj.weight")), t, tp));
      stored[name("linear_fc1.weight")] = fc1;
      stored[name("linear_fc2.weight")] = column_part(model.at(layer(l, "mlp.down_proj.weight")), t, tp);
      stored[name("input_layernorm.weight")] = model.at(layer(l, "input_layernorm.weight"));
    }
    sample.ranks.push_back(std::move(stored));
  }
  return sample;
}

std::vector<Place> even_stages(std::int64_t pp) {
  std::vector<Place> places;
  for (std::int64_t l = 0; l < kLayers; ++l) places.push_back({l / (kLayers / pp), 0, l % (kLayers / pp)});
  return places;
}

// ---- vLLM: each rank has its q heads and the k and v head that they need; a vocabulary of whole multiples of 64.

constexpr const char* kVllm = R"J({
  "schema": "shardctl.layout/1", "name": "vllm", "vars": {"heads": 8, "kv": 4, "hd": 2, "vocab": 11},
  "mesh": {"tp": TP}, "types": {"p": "weight|bias"},
  "rules": [
    {"logical": "model.embed_tokens.weight", "stored": "model.embed_tokens.weight",
     "pad": {"dim": 0, "to": "ceil_to(n, 64)", "true": "vocab"}, "shard": [{"axis": "tp", "dim": 0}]},
    {"logical": "lm_head.weight", "stored": "lm_head.weight",
     "pad": {"dim": 0, "to": "ceil_to(n, 64)", "true": "vocab"}, "shard": [{"axis": "tp", "dim": 0}]},
    {"logical": ["model.layers.{l}.self_attn.q_proj.{p}", "model.layers.{l}.self_attn.k_proj.{p}",
                 "model.layers.{l}.self_attn.v_proj.{p}"],
     "stored": "model.layers.{l}.self_attn.qkv_proj.{p}", "shard": [{"axis": "tp", "dim": 0}],
     "concat": {"dim": 0, "per_segment": true, "sizes": ["heads*hd", "kv*hd", "kv*hd"],
                "replicas": [1, "max(1, tp//kv)", "max(1, tp//kv)"]}},
    {"logical": ["model.layers.{l}.mlp.gate_proj.weight", "model.layers.{l}.mlp.up_proj.weight"],
     "stored": "model.layers.{l}.mlp.gate_up_proj.weight", "shard": [{"axis": "tp", "dim": 0}],
     "concat": {"dim": 0, "per_segment": true, "sizes": [16, 16]}},
    {"match": ".*\\.(o_proj|down_proj)\\.weight", "shard": [{"axis": "tp", "dim": 1}]},
    {"match": ".*norm\\.weight"}]})J";

Sample vllm(std::int64_t tp) {
  const Model model = make_model();
  Sample sample{fmt::format("vllm tp {}", tp), kVllm, {}};
  sample.document.replace(sample.document.find("TP"), 2, std::to_string(tp));
  for (std::int64_t t = 0; t < tp; ++t) {
    Model stored;
    for (const std::string name : {"model.embed_tokens.weight", "lm_head.weight"}) {
      stored[name] = row_part(padded_to(model.at(name), 64), t, tp);
    }
    stored["model.norm.weight"] = model.at("model.norm.weight");
    for (std::int64_t l = 0; l < kLayers; ++l) {
      const std::int64_t copies = std::max<std::int64_t>(1, tp / kGroups);
      for (const std::string kind : {"weight", "bias"}) {
        Matrix qkv = row_part(model.at(layer(l, "self_attn.q_proj." + kind)), t, tp);
        append_rows(qkv, row_part(model.at(layer(l, "self_attn.k_proj." + kind)), t / copies, tp / copies));
        append_rows(qkv, row_part(model.at(layer(l, "self_attn.v_proj." + kind)), t / copies, tp / copies));
        stored[layer(l, "self_attn.qkv_proj." + kind)] = qkv;
      }
      Matrix gate_up = row_part(model.at(layer(l, "mlp.gate_proj.weight")), t, tp);
      append_rows(gate_up, row_part(model.at(layer(l, "mlp.up_proj.weight")), t, tp));
      stored[layer(l, "mlp.gate_up_proj.weight")] = gate_up;
      for (const char* name : {"self_attn.o_proj.weight", "mlp.down_proj.weight"}) {
        stored[layer(l, name)] = column_part(model.at(layer(l, name)), t, tp);
      }
      stored[layer(l, "input_layernorm.weight")] = model.at(layer(l, "input_layernorm.weight"));
    }
    sample.ranks.push_back(std::move(stored));
  }
  return sample;
}

std::vector<Sample> all_samples() {
  std::vector<Sample> samples;
  for (const auto& [tp, pp] : {std::pair<std::int64_t, std::int64_t>{1, 1}, {2, 1}, {4, 1}, {4, 2}, {8, 4}, {2, 4}}) {
    samples.push_back(megatron(tp, pp, R"("chunks": 1)", even_stages(pp)));
  }
  samples.push_back(megatron(2, 2, R"("chunks": 2)", {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {1, 1, 0}}));
  samples.push_back(megatron(1, 3, R"("counts": [1, 2, 1])", {{0, 0, 0}, {1, 0, 0}, {1, 0, 1}, {2, 0, 0}}));
  for (const std::int64_t tp : {1, 2, 4, 8}) samples.push_back(vllm(tp));
  return samples;
}

ModelMap map_of(const Sample& sample) {
  MapDocument document = parse_map_document(sample.document, sample.name);
  MapVariables variables(document, {});
  return ModelMap(std::move(document), std::move(variables));
}

TEST(MapPass, UndoesEachOfTwelveLayouts) {
  const Model model = make_model();
  for (const Sample& sample : all_samples()) {
    const Stored stored(sample.ranks);
    const UndoneMap undone(stored.catalog(), map_of(sample));
    const Catalog logical = undone.make_catalog(stored.catalog());
    EXPECT_EQ(read_all(logical, stored.elements()), flat(model)) << sample.name;
  }
}

TEST(MapPass, ConvertsAllOrderedPairsOfTwelveLayouts) {
  const std::vector<Sample> samples = all_samples();
  ASSERT_EQ(samples.size(), 12u);
  for (const Sample& from : samples) {
    const Stored stored(from.ranks);
    const Catalog logical = UndoneMap(stored.catalog(), map_of(from)).make_catalog(stored.catalog());
    for (const Sample& to : samples) {
      const AppliedMap applied(logical, everything(logical), map_of(to));
      EXPECT_EQ(copied(logical, stored.elements(), applied), flat(to.ranks)) << from.name << " to " << to.name;
    }
  }
}

}  // namespace
}  // namespace shard::test
