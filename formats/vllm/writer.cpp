#include "libshard/checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "formats/foreign.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "formats/vllm/format.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::vllm {

namespace {

/// Writes one safetensors file for each part of each rank.
class VllmWriter final : public Writer {
 public:
  void place(Catalog& target) override {
    safetensors::check_tensors(target);
    std::vector<std::vector<safetensors::OutgoingTensor>> by_file(target.files.size());
    for (const Tensor& tensor : target.tensors) {
      Storage& storage = target.storage_of(tensor);
      by_file[storage.file].push_back({&tensor, tensor.shape, &storage});
    }
    int ranks = 0;
    for (const File& file : target.files) ranks = std::max(ranks, file.rank + 1);
    std::map<int, int> parts;  // The number of parts so far, by rank.
    for (std::size_t i = 0; i < by_file.size(); ++i) {
      File& file = target.files[i];
      file.path = fmt::format("model-rank-{}-part-{}.safetensors", file.rank, parts[file.rank]++);
      heads_.push_back(
          safetensors::place_file(by_file[i], {{safetensors::kWorldSizeKey, std::to_string(ranks)}}, file));
    }
  }

  void begin_file(const Catalog&, std::uint32_t file, FileWriter& to) override {
    to.write_at(0, std::as_bytes(std::span(heads_[file])));
  }

  bool is_folder() const override { return true; }

 private:
  std::vector<std::string> heads_;  ///< The headers, by file.
};

/// \pre each file of the target has a rank, and contains whole tensors
/// \throws Error kUnsupported (from Writer::place)  as safetensors
std::unique_ptr<Writer> make_writer(const WriteOptions&) { return std::make_unique<VllmWriter>(); }

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

}  // namespace shard::vllm

const shard::Format shard::kVllmFormat{
    .traits = {.name = "vllm", .pieces = true, .mapped_ranks = true},
    .suffixes = {},
    .detect = vllm::detect,
    .open = vllm::open,
    .make_writer = vllm::make_writer,
    .refuse_part = vllm::refuse_parts,
};
