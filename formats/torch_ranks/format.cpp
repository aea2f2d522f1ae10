#include "formats/torch_ranks/format.h"

#include <array>
#include <string_view>

#include "formats/torch_ranks/rank_source.h"
#include "formats/torch_ranks/reader.h"
#include "libshard/map/documents/document.h"

namespace shard {

namespace {

/// A file with sharded tensors is also valid for torch, which cannot merge the ranks.
constexpr std::array<std::string_view, 1> kSupersedes{"torch"};

std::vector<std::string> likely_rank_files(const Source& source) { return torch_ranks::find_rank_files(source).names; }

}  // namespace

const Format kTorchRanksFormat{
    .traits = torch_ranks::traits_for({}),
    .suffixes = {},
    .supersedes = kSupersedes,
    .is_guessed = true,
    .file_format = "torch",
    .map_container = MapContainer::kTorch,
    .objects_apart = false,
    .has_rank_kinds = true,
    .detect = torch_ranks::detect,
    .open = torch_ranks::open,
    .make_writer = torch_ranks::make_writer,
    .traits_for = torch_ranks::traits_for,
    .likely_rank_files = likely_rank_files,
};

}  // namespace shard
