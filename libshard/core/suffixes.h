/// \file
/// Suffixes of files with tensors. Pure.
#pragma once

#include <array>
#include <string_view>

#include "libshard/core/contains.h"

namespace shard {

inline constexpr std::string_view kSafetensorsSuffix = ".safetensors", kBinSuffix = ".bin";
/// Files of torch.save with one rank's part, or all.
inline constexpr std::array<std::string_view, 3> kTorchSuffixes{".pt", ".pth", kBinSuffix};
/// Files of torch.save with a whole checkpoint.
inline constexpr std::array<std::string_view, 3> kWholeTorchSuffixes{".ckpt", ".tar", ".th"};
inline constexpr std::array<std::string_view, 2> kHdf5Suffixes{".h5", ".hdf5"};
/// Files of tensors in other programs' formats, and items of a checkpoint's folder.
inline constexpr std::array<std::string_view, 7> kOtherWeightsSuffixes{".distcp", ".gguf", ".keras", ".msgpack",
                                                                       ".npz",    ".onnx", ".ot"};

/// True for the name of a file with a model's tensors, in any program's format.
inline bool is_weights_name(std::string_view name) {
  return name.ends_with(kSafetensorsSuffix) || ends_in_any(name, kTorchSuffixes) ||
         ends_in_any(name, kWholeTorchSuffixes) || ends_in_any(name, kHdf5Suffixes) ||
         ends_in_any(name, kOtherWeightsSuffixes);
}

}  // namespace shard
