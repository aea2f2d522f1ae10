#include "libshard/catalog/quantized.h"

#include <gtest/gtest.h>

#include <optional>

#include "tests/catalog/build.h"
#include "tests/support/cpu_time.h"

namespace shard {
namespace {

using test::add_tensor;
using test::Numbers;
using Role = QuantizedRole;
using Form = QuantizedForm;

constexpr DType kF8 = DType::kFloat8E4m3fn, kE8 = DType::kFloat8E8m0fnu, kBf16 = DType::kBfloat16,
                kF16 = DType::kFloat16, kF32 = DType::kFloat32, kU8 = DType::kUint8, kI8 = DType::kInt8,
                kI32 = DType::kInt32, kI64 = DType::kInt64;

/// A tensor with its role in the expected module; none: it is plain.
struct Stored {
  const char* name;
  DType dtype;
  Numbers shape;
  std::optional<Role> role;
};

struct Method {
  const char* title;
  const char* module;
  Form form;
  std::vector<Stored> tensors;
};

Catalog catalog_of(const std::vector<Stored>& tensors) {
  Catalog catalog;
  for (const Stored& each : tensors) add_tensor(catalog, each.name, each.shape, each.dtype);
  validate_catalog(catalog);
  return catalog;
}

std::uint32_t index_of(const Catalog& catalog, std::string_view name) {
  return static_cast<std::uint32_t>(catalog.find(name) - catalog.tensors.data());
}

std::optional<Role> role_of(const QuantizedPart& part, std::uint32_t tensor) {
  if (part.is_plain(tensor)) return std::nullopt;
  for (const QuantizedMember& member : part.members_of(part.modules[part.module_of[tensor]])) {
    if (member.tensor == tensor) return member.role;
  }
  ADD_FAILURE() << "a module lacks its tensor";
  return std::nullopt;
}

void expect_roles(const char* title, const Catalog& catalog, const QuantizedPart& part,
                  const std::vector<Stored>& tensors) {
  for (const Stored& each : tensors) {
    EXPECT_EQ(role_of(part, index_of(catalog, each.name)), each.role) << title << ": " << each.name;
  }
}

/// Names, dtypes and shapes as the tools write them; each with a plain tensor beside the module.
std::vector<Method> methods() {
  return {
      {"float8 in blocks",
       "m.up",
       Form::kFloat8,
       {{"m.up.weight", kF8, {256, 256}, Role::kWeight},
        {"m.up.weight_scale_inv", kF32, {2, 2}, Role::kScale},
        {"m.gate.e_score_correction_bias", kF32, {8}, {}},
        {"m.norm.weight", kBf16, {256}, {}}}},
      {"float8 of fused experts",
       "m.experts.gate_up_proj",
       Form::kFloat8,
       {{"m.experts.gate_up_proj", kF8, {4, 256, 128}, Role::kWeight},
        {"m.experts.gate_up_proj_scale_inv", kF32, {4, 2, 1}, Role::kScale},
        {"m.experts.gate_up_proj_activation_scale", kF32, {4}, Role::kActivationScale},
        {"m.experts.other", kBf16, {4, 8}, {}}}},
      {"NVFP4 of ModelOpt's experts",
       "m.experts.gate_up_proj",
       Form::kNvfp4,
       {{"m.experts.gate_up_proj", kU8, {2, 16, 64}, Role::kWeight},
        {"m.experts.gate_up_proj_weight_scale", kF8, {2, 2, 64}, Role::kScale},
        {"m.experts.gate_up_proj_weight_scale_2", kF32, {}, Role::kSecondScale},
        {"m.experts.gate_up_proj_input_scale", kF32, {}, Role::kActivationScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"INT8 of Gemma",
       "m.up",
       Form::kInt8,
       {{"m.up.weight", kI8, {32, 64}, Role::kWeight},
        {"m.up.weight_scale", kF32, {32, 1}, Role::kScale},
        {"m.up.input_activation_scale", kF32, {}, Role::kActivationScale},
        {"m.up.output_activation_scale", kF32, {}, Role::kActivationScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"float8 with a static input scale",
       "m.q_proj",
       Form::kFloat8,
       {{"m.q_proj.weight", kF8, {32, 32}, Role::kWeight},
        {"m.q_proj.weight_scale", kF32, {}, Role::kScale},
        {"m.q_proj.input_scale", kF32, {}, Role::kActivationScale},
        {"m.q_proj.bias", kBf16, {32}, Role::kOther},
        {"m.embed.weight", kBf16, {4, 32}, {}}}},
      {"float8 of ComfyUI",
       "img.0",
       Form::kFloat8,
       {{"img.0.weight", kF8, {32, 32}, Role::kWeight},
        {"img.0.scale_weight", kF32, {1}, Role::kScale},
        {"img.0.scale_input", kF32, {1}, Role::kActivationScale},
        {"img.norm.scale", kF32, {32}, {}}}},
      {"float8 of Mistral",
       "layers.0.attention.wq",
       Form::kFloat8,
       {{"layers.0.attention.wq.weight", kF8, {32, 32}, Role::kWeight},
        {"layers.0.attention.wq.qscale_weight", kF32, {}, Role::kScale},
        {"layers.0.attention.wq.qscale_act", kF32, {}, Role::kActivationScale},
        {"norm.weight", kBf16, {32}, {}}}},
      {"float8 with float8 exponents for blocks",
       "layers.0.attn.wq_a",
       Form::kFloat8,
       {{"layers.0.attn.wq_a.weight", kF8, {128, 256}, Role::kWeight},
        {"layers.0.attn.wq_a.scale", kE8, {1, 2}, Role::kScale},
        {"layers.0.attn_norm.weight", kF32, {256}, {}}}},
      {"float8 with an exponent for each of two blocks of few columns",
       "m.up",
       Form::kFloat8,
       {{"m.up.weight", kF8, {256, 32}, Role::kWeight},
        {"m.up.weight_scale_inv", kE8, {2, 1}, Role::kScale},
        {"m.norm.weight", kBf16, {32}, {}}}},
      {"MXFP8",
       "m.up",
       Form::kMxfp8,
       {{"m.up.weight", kF8, {32, 64}, Role::kWeight},
        {"m.up.weight_scale_inv", kU8, {32, 2}, Role::kScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"int8 of compressed-tensors",
       "m.up",
       Form::kInt8,
       {{"m.up.weight", kI8, {32, 64}, Role::kWeight},
        {"m.up.weight_scale", kBf16, {32, 1}, Role::kScale},
        {"m.up.weight_zero_point", kI8, {32, 1}, Role::kZeroPoint},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"int8 of EETQ",
       "m.up",
       Form::kInt8,
       {{"m.up.weight", kI8, {64, 32}, Role::kWeight},
        {"m.up.weight_scales", kF16, {32}, Role::kScale},
        {"m.norm.weight", kF16, {64}, {}}}},
      {"packed integers",
       "m.up",
       Form::kPackedInts,
       {{"m.up.weight_packed", kI32, {32, 8}, Role::kWeight},
        {"m.up.weight_scale", kBf16, {32, 2}, Role::kScale},
        {"m.up.weight_zero_point", kI32, {4, 2}, Role::kZeroPoint},
        {"m.up.weight_shape", kI64, {2}, Role::kShape},
        {"m.up.weight_g_idx", kI32, {64}, Role::kGroupIndex},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"NVFP4 of compressed-tensors",
       "m.up",
       Form::kNvfp4Packed,
       {{"m.up.weight_packed", kU8, {32, 8}, Role::kWeight},
        {"m.up.weight_scale", kF8, {32, 1}, Role::kScale},
        {"m.up.weight_global_scale", kF32, {1}, Role::kSecondScale},
        {"m.up.input_global_scale", kF32, {1}, Role::kActivationScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"MXFP4 of compressed-tensors",
       "m.up",
       Form::kMxfp4Packed,
       {{"m.up.weight_packed", kU8, {32, 32}, Role::kWeight},
        {"m.up.weight_scale", kU8, {32, 2}, Role::kScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"NVFP4 of ModelOpt",
       "m.k_proj",
       Form::kNvfp4,
       {{"m.k_proj.weight", kU8, {32, 8}, Role::kWeight},
        {"m.k_proj.weight_scale", kF8, {32, 1}, Role::kScale},
        {"m.k_proj.weight_scale_2", kF32, {}, Role::kSecondScale},
        {"m.k_proj.input_scale", kF32, {}, Role::kActivationScale},
        {"m.k_proj.k_scale", kF32, {}, Role::kCacheScale},
        {"lm_head.weight", kBf16, {64, 16}, {}}}},
      {"MXFP4 of GPT-OSS",
       "m.experts.down_proj",
       Form::kMxfp4Blocks,
       {{"m.experts.down_proj_blocks", kU8, {4, 64, 2, 16}, Role::kWeight},
        {"m.experts.down_proj_scales", kU8, {4, 64, 2}, Role::kScale},
        {"m.experts.down_proj_bias", kBf16, {4, 64}, Role::kOther},
        {"m.self_attn.sinks", kBf16, {8}, {}}}},
      {"FP4 of DeepSeek V4",
       "layers.0.ffn.experts.3.w1",
       Form::kFp4Exponents,
       {{"layers.0.ffn.experts.3.w1.weight", kI8, {64, 32}, Role::kWeight},
        {"layers.0.ffn.experts.3.w1.scale", kE8, {64, 2}, Role::kScale},
        {"layers.0.ffn.gate.bias", kF32, {4}, {}}}},
      {"bitsandbytes, 4 bits, quantized twice",
       "m.q_proj",
       Form::kBitsandbytes4,
       {{"m.q_proj.weight", kU8, {8192, 1}, Role::kWeight},
        {"m.q_proj.weight.absmax", kU8, {256}, Role::kScale},
        {"m.q_proj.weight.nested_absmax", kF32, {1}, Role::kSecondScale},
        {"m.q_proj.weight.nested_quant_map", kF32, {256}, Role::kCodeBook},
        {"m.q_proj.weight.quant_map", kF32, {16}, Role::kCodeBook},
        {"m.q_proj.weight.quant_state.bitsandbytes__nf4", kU8, {96}, Role::kDescription},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"bitsandbytes, 4 bits, stored as bfloat16",
       "m.q_proj",
       Form::kBitsandbytes4,
       {{"m.q_proj.weight", kBf16, {4096, 1}, Role::kWeight},
        {"m.q_proj.weight.absmax", kF32, {256}, Role::kScale},
        {"m.q_proj.weight.quant_map", kF32, {16}, Role::kCodeBook},
        {"m.q_proj.weight.quant_state.bitsandbytes__fp4", kU8, {90}, Role::kDescription},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"bitsandbytes, 8 bits",
       "m.q_proj",
       Form::kBitsandbytes8,
       {{"m.q_proj.weight", kI8, {64, 64}, Role::kWeight},
        {"m.q_proj.SCB", kF32, {64}, Role::kScale},
        {"m.q_proj.weight_format", kU8, {}, Role::kOther},
        {"m.q_proj.bias", kF16, {64}, Role::kOther},
        {"m.norm.weight", kF16, {64}, {}}}},
      {"4 bits of bitsandbytes in GPTQModel",
       "m.q_proj",
       Form::kBitsandbytes4,
       {{"m.q_proj.weight", kU8, {8192, 1}, Role::kWeight},
        {"m.q_proj.weight_absmax", kU8, {256}, Role::kScale},
        {"m.q_proj.weight_nested_absmax", kF32, {1}, Role::kSecondScale},
        {"m.q_proj.weight_nested_quant_map", kF32, {256}, Role::kCodeBook},
        {"m.q_proj.weight_quant_map", kF32, {16}, Role::kCodeBook},
        {"m.q_proj.weight_quant_state", kU8, {96}, Role::kDescription},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"8 bits of bitsandbytes in GPTQModel",
       "m.q_proj",
       Form::kBitsandbytes8,
       {{"m.q_proj.weight", kI8, {64, 64}, Role::kWeight},
        {"m.q_proj.weight_scb", kF32, {64}, Role::kScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"GPTQ",
       "m.up",
       Form::kGptq,
       {{"m.up.qweight", kI32, {4, 32}, Role::kWeight},
        {"m.up.qzeros", kI32, {1, 4}, Role::kZeroPoint},
        {"m.up.scales", kF16, {1, 32}, Role::kScale},
        {"m.up.g_idx", kI32, {32}, Role::kGroupIndex},
        {"m.up.bias", kF16, {32}, Role::kOther},
        {"m.norm.weight", kF16, {32}, {}}}},
      {"GPTQ without g_idx",
       "m.up",
       Form::kGptq,
       {{"m.up.qweight", kI32, {4, 32}, Role::kWeight},
        {"m.up.qzeros", kI32, {1, 4}, Role::kZeroPoint},
        {"m.up.scales", kF16, {1, 32}, Role::kScale},
        {"m.norm.weight", kF16, {32}, {}}}},
      {"AWQ",
       "m.up",
       Form::kAwq,
       {{"m.up.qweight", kI32, {32, 4}, Role::kWeight},
        {"m.up.qzeros", kI32, {1, 4}, Role::kZeroPoint},
        {"m.up.scales", kF16, {1, 32}, Role::kScale},
        {"m.norm.weight", kF16, {32}, {}}}},
      {"MLX",
       "m.up",
       Form::kMlx,
       {{"m.up.weight", DType::kUint32, {32, 4}, Role::kWeight},
        {"m.up.scales", kBf16, {32, 1}, Role::kScale},
        {"m.up.biases", kBf16, {32, 1}, Role::kZeroPoint},
        {"m.up.bias", kBf16, {32}, Role::kOther},
        {"m.norm.weight", kBf16, {32}, {}}}},
      {"HQQ",
       "m.up",
       Form::kHqq,
       {{"m.up.W_q", kU8, {32, 64}, Role::kWeight},
        {"m.up.scale", kBf16, {64, 1}, Role::kScale},
        {"m.up.zero", kBf16, {64, 1}, Role::kZeroPoint},
        {"m.up.nbits", kI32, {}, Role::kOther},
        {"m.up.shape", kI64, {2}, Role::kOther},
        {"m.norm.weight", kBf16, {32}, {}}}},
      {"HQQ in floats with quantized scales",
       "m.up",
       Form::kHqq,
       {{"m.up.W_q", kBf16, {32, 16}, Role::kWeight},
        {"m.up.scale_q", kU8, {64, 1}, Role::kScale},
        {"m.up.zero_q", kU8, {64, 1}, Role::kZeroPoint},
        {"m.up.meta_scale.scale", kBf16, {1, 64}, {}},
        {"m.norm.weight", kBf16, {32}, {}}}},
      {"HQQ in floats with scales and zero points in one tensor",
       "m.up",
       Form::kHqq,
       {{"m.up.W_q", kBf16, {32, 16}, Role::kWeight},
        {"m.up.zero_scale", kU8, {2, 64, 1}, Role::kScale},
        {"m.norm.weight", kBf16, {32}, {}}}},
      {"quanto, 8 bits",
       "m.up",
       Form::kQuanto,
       {{"m.up.weight._data", kI8, {32, 64}, Role::kWeight},
        {"m.up.weight._scale", kBf16, {32, 1}, Role::kScale},
        {"m.up.input_scale", kBf16, {}, Role::kActivationScale},
        {"m.up.output_scale", kBf16, {}, Role::kActivationScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"quanto, 4 bits",
       "m.up",
       Form::kQuanto,
       {{"m.up.weight._data._data", kU8, {16, 64}, Role::kWeight},
        {"m.up.weight._scale", kBf16, {32, 1}, Role::kScale},
        {"m.up.weight._shift", kBf16, {32, 1}, Role::kZeroPoint},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"torchao",
       "m.up._weight",
       Form::kTorchao,
       {{"m.up._weight_qdata", kF8, {32, 64}, Role::kWeight},
        {"m.up._weight_scale", kF32, {32, 1}, Role::kScale},
        {"m.up.bias", kBf16, {32}, {}},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"torchao, NVFP4",
       "m.up._weight",
       Form::kTorchao,
       {{"m.up._weight_qdata", kU8, {32, 32}, Role::kWeight},
        {"m.up._weight_scale", kF8, {32, 4}, Role::kScale},
        {"m.up._weight_per_tensor_scale", kF32, {}, Role::kSecondScale},
        {"m.up._weight_act_per_tensor_scale", kF32, {}, Role::kActivationScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"BitNet",
       "m.up",
       Form::kOther,
       {{"m.up.weight", kU8, {8, 64}, Role::kWeight},
        {"m.up.weight_scale", kBf16, {1}, Role::kScale},
        {"m.norm.weight", kBf16, {64}, {}}}},
      {"AQLM",
       "m.up",
       Form::kOther,
       {{"m.up.codes", DType::kInt16, {32, 8, 1}, Role::kWeight},
        {"m.up.codebooks", kF16, {1, 256, 1, 8}, Role::kCodeBook},
        {"m.up.scales", kF16, {32, 1, 1, 1}, Role::kScale},
        {"m.norm.weight", kF16, {64}, {}}}},
      {"a state of an 8-bit optimizer",
       "optimizer.state.0",
       Form::kState,
       {{"optimizer.state.0.state1", kU8, {64, 64}, Role::kWeight},
        {"optimizer.state.0.qmap1", kF32, {256}, Role::kCodeBook},
        {"optimizer.state.0.absmax1", kF32, {16}, Role::kScale},
        {"optimizer.state.0.step", kF32, {}, Role::kOther},
        {"model.w", kF32, {64, 64}, {}}}},
  };
}

TEST(Quantized, KnowsTheModulesOfEveryMethod) {
  for (const Method& method : methods()) {
    const Catalog catalog = catalog_of(method.tensors);
    const QuantizedPart part = find_quantized(catalog);
    expect_roles(method.title, catalog, part, method.tensors);
    ASSERT_EQ(part.modules.size(), 1U) << method.title;
    EXPECT_EQ(part.modules[0].name, method.module) << method.title;
    EXPECT_EQ(quantized_form_name(part.modules[0].form), quantized_form_name(method.form)) << method.title;
    EXPECT_TRUE(part.modules[0].has_weight && part.modules[0].has_scales) << method.title;
    EXPECT_TRUE(part.lone_floats.empty()) << method.title;
  }
}

TEST(Quantized, LeavesPlainTensorsOfSuchNamesPlain) {
  const std::vector<Stored> tensors{
      {"norm.scale", kF32, {8}, {}},
      {"norm.weight", kF32, {8}, {}},
      {"block.layer_scale", kF32, {8}, {}},
      {"block.layer", kF32, {8, 8}, {}},
      {"logit_scale", kF32, {}, {}},
      {"prior.scales", kF32, {8}, {}},
      {"prior.weight", kF32, {8, 8}, {}},
      {"stats.absmax", kF32, {8}, {}},
      {"stats", kF32, {8}, {}},
      {"attn.k_scale", kF32, {}, {}},
      {"attn.zero", kF32, {8}, {}},
      {"fake.weight", kBf16, {8, 8}, {}},
      {"fake.weight_scale", kF32, {8, 1}, {}},
      {"fake.qweight", kF32, {8, 8}, {}},
      {"codec.codes", kI64, {8, 8}, {}},
      {"net_blocks", kU8, {8}, {}},
      {"table.codebooks", kF32, {8, 8}, {}},
      {"mask", kU8, {8, 8}, {}},
      {"tokens_packed", kI64, {8, 8}, {}},
      {"embed.weight", kI8, {8, 8}, {}},
      {"g_idx", kI32, {8}, {}},
      {"adam.state1", kF32, {8}, {}},
      {"flag", DType::kBool, {8}, {}},
  };
  const Catalog catalog = catalog_of(tensors);
  const QuantizedPart part = find_quantized(catalog);
  expect_roles("plain", catalog, part, tensors);
  EXPECT_TRUE(part.modules.empty());
}

TEST(Quantized, CountsScalesWhoseWeightIsInAFileThatIsNotRead) {
  for (const char* name :
       {"m.up.weight_scale_inv", "m.up.weight_scale", "m.up.weight_scale_2", "m.up.SCB", "m.up.weight_global_scale",
        "m.up.weight.quant_map", "m.up.weight.absmax", "m.experts.down_proj_scale_inv"}) {
    Catalog catalog;
    add_tensor(catalog, name, {2, 2});
    validate_catalog(catalog);
    const QuantizedPart part = find_quantized(catalog);
    ASSERT_EQ(part.modules.size(), 1U) << name;
    EXPECT_FALSE(part.modules[0].has_weight) << name;
  }
}

TEST(Quantized, TakesAFloat8WeightWithoutScalesForOneOnlyInAQuantizedCheckpoint) {
  const std::vector<Stored> lone{{"a.weight", kF8, {8, 8}, {}}, {"norm.weight", kF32, {8}, {}}};
  const Catalog plain = catalog_of(lone);
  EXPECT_EQ(find_quantized(plain).lone_floats, std::vector<std::uint32_t>{0});
  EXPECT_TRUE(find_quantized(plain).is_plain(0));

  const QuantizedPart stated = find_quantized(plain, {.is_quantized = true, .method = "fp8"});
  EXPECT_EQ(role_of(stated, 0), Role::kWeight);
  EXPECT_FALSE(stated.modules.at(0).has_scales);
  EXPECT_TRUE(stated.is_plain(1));
  EXPECT_TRUE(stated.lone_floats.empty());

  std::vector<Stored> mixed = lone;
  mixed.push_back({"b.weight", kF8, {8, 8}, {}});
  mixed.push_back({"b.weight_scale", kF32, {}, {}});
  const Catalog quantized = catalog_of(mixed);
  EXPECT_FALSE(find_quantized(quantized).is_plain(0));
}

TEST(Quantized, CountsHalfOfAModuleInBlocksIfTheMethodOrAnotherModuleIsMxfp4) {
  const std::vector<Stored> halves{{"a.up_blocks", kU8, {2, 4, 1, 16}, {}},
                                   {"b.up_scales", kU8, {2, 4, 1}, {}},
                                   {"c.table_scales", kF32, {4, 4}, {}},
                                   {"d.net_blocks", kU8, {8}, {}}};
  const Catalog lone = catalog_of(halves);
  EXPECT_TRUE(find_quantized(lone).modules.empty());
  EXPECT_TRUE(find_quantized(lone, {.is_quantized = true, .method = "gptq"}).modules.empty());

  std::vector<Stored> beside_whole = halves;
  beside_whole.push_back({"e.up_blocks", kU8, {2, 4, 1, 16}, {}});
  beside_whole.push_back({"e.up_scales", kU8, {2, 4, 1}, {}});
  const Catalog mixed = catalog_of(beside_whole);
  const QuantizedPart stated = find_quantized(lone, {.is_quantized = true, .method = "mxfp4"});
  for (const QuantizedPart& part : {stated, find_quantized(mixed)}) {
    EXPECT_EQ(role_of(part, 0), Role::kWeight);
    EXPECT_EQ(role_of(part, 1), Role::kScale);
    EXPECT_TRUE(part.is_plain(2));
    EXPECT_TRUE(part.is_plain(3));
  }
}

TEST(Quantized, CountsScalesOfACacheOnlyInAQuantizedCheckpoint) {
  const std::vector<Stored> tensors{{"attn.k_scale", kF32, {}, {}}, {"attn.sinks", kBf16, {8}, {}}};
  const Catalog catalog = catalog_of(tensors);
  EXPECT_TRUE(find_quantized(catalog).is_plain(0));
  const QuantizedPart stated = find_quantized(catalog, {.is_quantized = true});
  EXPECT_EQ(role_of(stated, 0), Role::kCacheScale);
  EXPECT_TRUE(stated.is_plain(1));
}

TEST(Quantized, NamesScales) {
  for (const char* name : {"a.scales", "a.absmax1", "a.weight_scale", "a.weight.absmax", "a.input_scale", "a.SCB"}) {
    EXPECT_TRUE(is_scale_name(name)) << name;
  }
  for (const char* name : {"norm.scale", "layer_scale", "logit_scale", "a.weight", "a.qweight", "a.qzeros", ""}) {
    EXPECT_FALSE(is_scale_name(name)) << name;
  }
}

TEST(Quantized, CostsHalfAMillionTensorsLittle) {
  Catalog catalog;
  for (int i = 0; i < 250'000; ++i) {
    const std::string module = "model.layers.0.mlp.experts." + std::to_string(i);
    add_tensor(catalog, module + ".weight", {8, 8}, kF8);
    add_tensor(catalog, module + ".weight_scale_inv", {1, 1});
  }
  QuantizedPart part;
  const double seconds = test::cpu_seconds([&] { part = find_quantized(catalog); });
  EXPECT_EQ(part.modules.size(), 250'000U);
  EXPECT_LT(seconds, test::cpu_limit(4));
}

}  // namespace
}  // namespace shard
