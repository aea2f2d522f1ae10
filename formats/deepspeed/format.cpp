#include "formats/deepspeed/format.h"

#include <array>
#include <string_view>

namespace shard {

namespace {

/// The files of a save are torch.save files, but only DeepSpeed's own formats can join them.
constexpr std::array<std::string_view, 2> kSupersedes{"torch", "torch-ranks"};
constexpr std::array<std::string_view, 2> kWeights{"masters", "16bit"};
constexpr std::array kReadOptions{
    FormatOption{"weights", kWeights, "DeepSpeed parameters to read: masters (default) or 16bit (the module's copies)",
                 "DeepSpeed checkpoints", "checkpoints of other formats have one copy of each parameter"}};

}  // namespace

bool deepspeed::wants_module(const OpenOptions& options) {
  return choice(options.choices, kReadOptions.front()) == kWeights.back();
}

const Format kDeepSpeedFormat{
    .traits = {.name = "deepspeed", .pieces = true, .objects = true, .many_files = false},
    .suffixes = {},
    .supersedes = kSupersedes,
    .ranks_may_differ = true,
    .read_options = kReadOptions,
    .detect = deepspeed::detect,
    .open = deepspeed::open,
    .make_writer = nullptr,
    .rewrite = deepspeed::repartition,
    .rewrites = "deepspeed",
};

const Format kDeepSpeedUniversalFormat{
    .traits = {.name = "deepspeed-universal", .objects = true, .many_files = false},
    .suffixes = {},
    .supersedes = kSupersedes,
    .read_options = kReadOptions,
    .detect = deepspeed::detect_universal,
    .open = deepspeed::open_universal,
    .make_writer = nullptr,
    .rewrite = deepspeed::make_universal,
    .rewrites = "deepspeed",
};

}  // namespace shard
