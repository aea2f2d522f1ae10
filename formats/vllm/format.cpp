#include "formats/vllm/format.h"

#include <algorithm>

#include "formats/foreign.h"
#include "libshard/core/error.h"

namespace shard {

namespace {

bool detect(const Source&) { return false; }

std::unique_ptr<Reader> open(const Source& source, const OpenOptions&) {
  throw Error(ErrorCode::kUnsupported, "cannot read a vLLM sharded_state folder: vllm is only written")
      .in_file(source.paths.front());
}

/// True for a file of vLLM's rank 1 or later. Each rank has its own parts, under the same tensor names.
bool is_vllm_part(std::string_view name) {
  return name.starts_with("model-rank-") && !name.starts_with("model-rank-0-") && name.ends_with(".safetensors");
}

/// The safetensors format would read such a folder as one checkpoint, in which names appear twice.
std::optional<Error> refuse_parts(const SourceStore& store, const std::string& path) {
  if (!store.is_folder(path)) return std::nullopt;
  if (!std::ranges::any_of(store.list(path), is_vllm_part)) return std::nullopt;
  return unreadable_kind("a vLLM sharded_state folder", path);
}

}  // namespace

const Format kVllmFormat{
    .traits = {.name = "vllm", .pieces = true, .mapped_ranks = true},
    .suffixes = {},
    .detect = detect,
    .open = open,
    .make_writer = vllm::make_writer,
    .refuse_part = refuse_parts,
};

}  // namespace shard
