#include "formats/vllm/format.h"

#include "libshard/core/error.h"

namespace shard {

namespace {

bool detect(const Source&) { return false; }

std::unique_ptr<Reader> open(const Source& source, const OpenOptions&) {
  throw Error(ErrorCode::kUnsupported, "cannot read a vLLM sharded_state folder: vllm is only written")
      .in_file(source.paths.front());
}

}  // namespace

const Format kVllmFormat{
    .traits = {.name = "vllm", .pieces = true, .mapped_ranks = true},
    .suffixes = {},
    .detect = detect,
    .open = open,
    .make_writer = vllm::make_writer,
};

}  // namespace shard
