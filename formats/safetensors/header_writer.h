/// \file
/// The header of a safetensors file that is to be written, byte for byte as the reference's `save_file` writes it.
/// Shared by every format whose files are safetensors.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard::safetensors {

/// What a file holds of one tensor: all of it or a piece, row-major in a storage of its own.
struct OutgoingTensor {
  const Tensor* tensor = nullptr;
  Dims shape;  ///< The piece's.
  Storage* storage = nullptr;
};

/// Whether the format can hold what the catalog's tensors are. To be asked before any of their names is written.
/// \throws Error kUnsupported  a dtype that safetensors lacks, a name that is not UTF-8 or is "__metadata__", float4
///   without dimensions.
void check_tensors(const Catalog& target);

/// Puts tensors into a file: orders them as the reference does (dtypes descending, so that wide elements come first and
/// every tensor is aligned, then as they come), sets each storage's offset and `file.bytes`.
/// \pre check_tensors; file.path is set, for messages.
/// \returns the file's bytes up to its data.
/// \throws Error kUnsupported  metadata that is not UTF-8, a header over kMaxHeaderBytes.
std::string place_file(std::vector<OutgoingTensor>& tensors, const std::map<std::string, std::string>& metadata,
                       File& file);

/// {"name":"the name that it shares its bytes with"} as JSON text, for "shardctl.aliases"; empty where there are none.
std::string aliases_text(const Catalog& target);

}  // namespace shard::safetensors
