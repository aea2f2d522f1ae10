#include "libshard/checkpoint/writer.h"

#include <fmt/format.h>

#include <vector>

#include "formats/parts/hf_index/index_file.h"
#include "formats/safetensors/format.h"
#include "formats/safetensors/header.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"

namespace shard::safetensors {

namespace {

class SafetensorsWriter final : public Writer {
 public:
  explicit SafetensorsWriter(const WriteOptions& options) : options_(options) {}

  void place(Catalog& target) override {
    if (target.files.empty()) target.files.emplace_back();
    if (options_.single_file && target.files.size() > 1) {
      throw Error(ErrorCode::kInvalidArgument, fmt::format("cannot write {} files as one", target.files.size()))
          .suggest(Remedy::kNameFolder);
    }
    check_tensors(target);
    target.metadata.try_emplace("format", "pt");
    if (std::string aliases = aliases_text(target); !aliases.empty()) {
      target.metadata[kAliasesNote] = std::move(aliases);
    }
    std::vector<std::vector<OutgoingTensor>> by_file = tensors_by_file(target);
    // True for files of ranks, which may contain equal names.
    const bool is_named = !target.files.front().path.empty();
    for (std::size_t i = 0; i < by_file.size(); ++i) {
      File& file = target.files[i];
      if (!is_named) file.path = file_name(i, by_file.size());
      heads_.push_back(place_file(by_file[i], target.metadata, file));
      total_bytes_ = checked_add(total_bytes_, file.bytes - static_cast<std::int64_t>(heads_.back().size()));
    }
    if (by_file.size() > 1 && !is_named) place_index(target);
  }

  void begin_file(const Catalog&, std::uint32_t file, FileWriter& to) override {
    if (file < heads_.size()) to.write_at(0, std::as_bytes(std::span(heads_[file])));
  }

  void finish_file(const Catalog&, std::uint32_t file, const Checksums&, FileWriter& to) override {
    if (file == heads_.size()) to.write_at(0, std::as_bytes(std::span(index_)));
  }

  bool is_folder() const override { return !options_.single_file; }

 private:
  static Storage& storage_of(Catalog& target, const Tensor& tensor) { return target.storage_of(tensor); }

  static std::vector<std::vector<OutgoingTensor>> tensors_by_file(Catalog& target) {
    std::vector<std::vector<OutgoingTensor>> by_file(target.files.size());
    for (const Tensor& tensor : target.tensors) {
      Storage& storage = storage_of(target, tensor);
      by_file[storage.file].push_back({&tensor, tensor.shape, &storage});
    }
    return by_file;
  }

  std::string stem() const { return options_.base_name.empty() ? "model" : options_.base_name; }

  std::string file_name(std::size_t file, std::size_t count) const {
    if (options_.single_file) return options_.base_name;
    if (count == 1) return stem() + ".safetensors";
    return fmt::format("{}-{:05}-of-{:05}.safetensors", stem(), file + 1, count);
  }

  void place_index(Catalog& target) {
    std::vector<hf_index::IndexEntry> entries;
    for (const Tensor& tensor : target.tensors) {  // The tensors are sorted by name already.
      entries.push_back({tensor.name, target.files[storage_of(target, tensor).file].path});
    }
    index_ = hf_index::dump_index(total_bytes_, entries);
    target.files.push_back({stem() + ".safetensors.index.json", static_cast<std::int64_t>(index_.size()), -1});
  }

  WriteOptions options_;
  std::vector<std::string> heads_;  ///< The headers, by file.
  std::string index_;               ///< The content of the index, which is the last file; empty if there is none.
  std::int64_t total_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  return std::make_unique<SafetensorsWriter>(options);
}

}  // namespace shard::safetensors
