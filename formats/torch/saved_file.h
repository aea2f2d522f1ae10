/// \file
/// One torch.save file, open: its zip, its pickle as a tree, its byte order.
#pragma once

#include <memory>
#include <string_view>

#include "formats/zip/zip.h"
#include "libshard/core/arena.h"
#include "libshard/core/value.h"

namespace shard::torch_save {

struct SavedFile {
  std::unique_ptr<zip::ZipReader> zip;
  Value* root = nullptr;  ///< As the pickle says it: tensors are still calls.
  bool big_endian = false;
  std::string_view version;  ///< For people: "zip, torch>=2.1".
};

/// Reads data.pkl and the small records; `shown` names the file in messages. What the tree points to, `arena` keeps.
/// \throws Error kUnsupported  a file of torch before 1.6, TorchScript.
/// \throws Error kCorruption   see ZipReader and pickle::load; no data.pkl, a byte order that is none.
SavedFile open_saved_file(std::shared_ptr<const RandomReader> file, Arena& arena, const std::string& shown);

/// What kind of tensor lies in `object` (or is it), where no name reaches it, or empty: a sparse one, one in an
/// attribute of a class, a bare storage. Such an object cannot be written without losing it.
std::string_view hidden_tensor_kind(const Value& object);

}  // namespace shard::torch_save
