#include "libshard/checkpoint/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "formats/dcp_hf/format.h"
#include "formats/dcp_hf/names.h"
#include "formats/dcp_hf/recorded.h"
#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "libshard/core/error.h"
#include "libshard/core/json_writer.h"
#include "libshard/io/file_writer.h"

namespace shard::dcp_hf {

namespace {

/// A JSON object that grows with every tensor of a file.
struct GrowingObject {
  GrowingObject() { json.begin_object(); }
  /// Returns the whole text and clears the object.
  std::string take() {
    json.end_object();
    return std::move(text);
  }
  std::string text;
  JsonWriter json{text, kPythonJson};
};

/// One rank's file while it is assembled.
struct Shard {
  std::vector<safetensors::OutgoingTensor> tensors;
  GrowingObject sharding_info, shapes;
};

class DcpHfWriter final : public Writer {
 public:
  void place(Catalog& target) override {
    safetensors::check_tensors(target);
    if (target.files.empty()) target.files.push_back({"", 0, 0});  // A folder without files is not a checkpoint.
    target.metadata.try_emplace("format", "pt");
    if (std::string aliases = safetensors::aliases_text(target); !aliases.empty()) {
      target.metadata[kAliasesNote] = std::move(aliases);
    }
    std::vector<Shard> shards(target.files.size());
    for (const Tensor& tensor : target.tensors) add_tensor(target, tensor, shards);
    const Recorded recorded = record_of(target);
    for (std::size_t i = 0; i < shards.size(); ++i) place_shard(target, recorded, shards[i], target.files[i]);
  }

  void begin_file(const Catalog&, std::uint32_t file, FileWriter& to) override {
    to.write_at(0, std::as_bytes(std::span(heads_[file])));
  }

  bool is_folder() const override { return true; }

 private:
  static void add_tensor(Catalog& target, const Tensor& tensor, std::vector<Shard>& shards) {
    for (const Chunk& chunk : target.chunks_of(tensor)) {
      Storage& storage = target.storage_of(chunk);
      Shard& shard = shards[storage.file];
      if (!shard.tensors.empty() && shard.tensors.back().tensor == &tensor) {
        refuse_second_box(tensor, target.files[storage.file].rank);
      }
      shard.tensors.push_back({&tensor, chunk.sizes, &storage});
      JsonWriter& info = shard.sharding_info.json;
      info.member_name(tensor.name), info.begin_object();
      info.key("saved_offsets"), info.numbers(chunk.offsets);
      info.end_object();
      if (chunk.sizes == tensor.shape) continue;
      shard.shapes.json.member_name(tensor.name), shard.shapes.json.numbers(tensor.shape);
    }
  }

  [[noreturn]] static void refuse_second_box(const Tensor& tensor, int rank) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("cannot write several boxes of tensor '{}' on rank {}: dcp-hf allows one", tensor.name, rank))
        .of_tensor(tensor.name)
        .of_rank(rank)
        .because("a file lists each tensor once, with one offset")
        .suggest(Remedy::kOneBoxPerRank)
        .suggest(Remedy::kWriteAs, "dcp");
  }

  static Recorded record_of(const Catalog& target) {
    std::vector<std::int64_t> ranks;
    for (const File& file : target.files) ranks.push_back(file.rank);
    return {std::max(target.world_size.value_or(0), ranks.back() + 1), runs_of(ranks), {}};
  }

  void place_shard(const Catalog& target, const Recorded& recorded, Shard& shard, File& file) {
    safetensors::MetadataMap metadata = target.metadata;
    metadata[safetensors::kShardingInfoKey] = shard.sharding_info.take();
    metadata[safetensors::kDcpVersionKey] = "1.0";
    record({recorded.world_size, recorded.ranks, shard.shapes.take()}, metadata);
    file.path = to_string(ShardName{file.rank, 1, 1});
    heads_.push_back(safetensors::place_file(shard.tensors, metadata, file));
    shard.tensors = {};
  }

  std::vector<std::string> heads_;  ///< The header of each file, with its length before it.
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions&) { return std::make_unique<DcpHfWriter>(); }

}  // namespace shard::dcp_hf
