/// \file Quantization as the JSON files of a model's folder state it. libshard/catalog/quantized.h classifies tensors.
#pragma once

#include <array>
#include <string>
#include <string_view>

#include "libshard/catalog/quantized.h"
#include "libshard/io/source_store.h"

namespace shard {

/// Files beside config.json whose presence states that the weights are quantized: ModelOpt's, AutoGPTQ's, AutoAWQ's,
/// quanto's.
inline constexpr std::array<std::string_view, 4> kQuantizationFiles{"hf_quant_config.json", "quantize_config.json",
                                                                    "quant_config.json", "quanto_qmap.json"};

/// Facts from the text of a config.json (`quantization_config`, also inside `text_config` and other parts of the model,
/// or `compression_config`) or of one of kQuantizationFiles. `file` is for messages.
/// \pre a NUL follows `text`  \throws Error kCorruption  it is not JSON
QuantizationFacts parse_quantization(std::string_view text, const std::string& file);

/// The text of a config.json of the same model with plain weights of `dtype`. Statements about quantization are
/// removed, even from parts of the model, and `dtype` and `torch_dtype` are set if the text states them. Everything
/// else is unchanged. \pre as for parse_quantization  \throws Error kCorruption  it is not JSON
std::string plain_config(std::string_view text, const std::string& file, DType dtype);

/// Facts from the files of a folder. A file that is missing, too large or not JSON contributes nothing, because it may
/// not belong to a model.
QuantizationFacts read_quantization(const SourceStore& store, const std::string& folder);

}  // namespace shard
