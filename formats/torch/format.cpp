#include "formats/torch/format.h"

#include <array>

#include "formats/torch/reader.h"
#include "libshard/core/suffixes.h"

namespace shard {

namespace {

constexpr std::array<std::string_view, 5> kSuffixes{".pt", ".pth", ".bin", ".ckpt", ".pth.tar"};

}  // namespace

const Format kTorchFormat{
    .traits = {.name = "torch", .objects = true, .sharing = true, .aliases = true},
    .suffixes = kSuffixes,
    .suffixes_tell_folders = false,  // Folders of this format are recognised by their files' names.
    .loader_suffix = kBinSuffix,
    .objects_apart = false,
    .detect = torch_save::detect,
    .open = torch_save::open,
    .make_writer = torch_save::make_writer,
};

}  // namespace shard
