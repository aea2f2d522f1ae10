/// \file
/// Writes the header of a safetensors file, byte for byte as the reference's `save_file` does. All formats whose files
/// are safetensors share it.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard::safetensors {

/// The part of a tensor that a file contains: the whole tensor or a piece, row-major in a separate storage.
struct OutgoingTensor {
  const Tensor* tensor = nullptr;
  Dims shape;  ///< The piece's shape.
  Storage* storage = nullptr;
};

/// Checks that the format can store the catalog's tensors. Must be called before any of their names is written.
/// \throws Error kUnsupported  a dtype that safetensors lacks, a name that is not UTF-8 or is "__metadata__", float4
///   without dimensions.
void check_tensors(const Catalog& target);

/// Places tensors in a file. Orders them as the reference does: dtypes descending, so that wide elements come first and
/// every tensor is aligned; tensors of one dtype keep their order. Sets each storage's offset and `file.bytes`.
/// \pre check_tensors was called; file.path is set, for messages.
/// \returns the file's bytes up to its data.
/// \throws Error kUnsupported  metadata that is not UTF-8, a header over kMaxHeaderBytes.
std::string place_file(std::vector<OutgoingTensor>& tensors, const std::map<std::string, std::string>& metadata,
                       File& file);

/// {"name": "the name with which it shares its bytes"} as JSON text, for "shardctl.aliases"; empty if there are none.
std::string aliases_text(const Catalog& target);

}  // namespace shard::safetensors
