#include "formats/torch/format.h"

#include <array>

#include "formats/torch/reader.h"
#include "formats/torch/source_files.h"
#include "formats/torch/writer.h"

namespace shard {

namespace {

constexpr std::array<std::string_view, 3> kSuffixes{".pt", ".pth", ".bin"};

}  // namespace

const Format kTorchFormat{
    .traits = {.name = "torch", .objects = true, .sharing = true},
    .suffixes = kSuffixes,
    .detect = torch_save::is_torch,
    .open = torch_save::open_torch,
    .make_writer = torch_save::make_torch_writer,
};

}  // namespace shard
