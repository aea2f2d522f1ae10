#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <vector>

#include "formats/safetensors/header.h"
#include "formats/safetensors/metadata.h"
#include "formats/vllm/format.h"
#include "libshard/io/file_writer.h"

namespace shard::vllm {

namespace {

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

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions&) { return std::make_unique<VllmWriter>(); }

}  // namespace shard::vllm
