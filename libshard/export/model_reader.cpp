#include "libshard/export/model_reader.h"

#include <utility>
#include <vector>

namespace shard {

namespace {

class ModelReader final : public Reader {
 public:
  ModelReader(std::unique_ptr<Reader> inner, const ModelPart& part)
      : inner_(std::move(inner)), catalog_(inner_->catalog()) {
    catalog_.borrowed.push_back(catalog_.arena);
    catalog_.arena = std::make_shared<Arena>();
    catalog_.root = nullptr;
    catalog_.rank_files.reset();
    catalog_.warnings = part.warnings;
    take_tensors(part);
    catalog_.objects.clear();
    for (const std::uint32_t object : part.objects) catalog_.objects.push_back(inner_->catalog().objects[object]);
  }

  const Catalog& catalog() const override { return catalog_; }

  void locate(std::span<const std::uint32_t> tensors) override {
    std::vector<std::uint32_t> wanted;
    wanted.reserve(tensors.size());
    for (const std::uint32_t tensor : tensors) wanted.push_back(sources_[tensor]);
    inner_->locate(wanted);
    catalog_.storages = inner_->catalog().storages;
    catalog_.stored = inner_->catalog().stored;
    catalog_.chunks = inner_->catalog().chunks;
  }

  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return inner_->file(index); }
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override {
    return inner_->bytes_of(storage);
  }
  bool check_container(std::uint32_t file, ContainerReport& report) const override {
    return inner_->check_container(file, report);
  }

 private:
  /// Tensors that share bytes refer to the first of them by name, which may now be a different one.
  void take_tensors(const ModelPart& part) {
    const std::vector<Tensor>& source = inner_->catalog().tensors;
    std::vector<std::uint32_t> first_of(source.size(), kNoIndex);
    catalog_.tensors.clear();
    catalog_.tensors.reserve(part.tensors.size());
    for (const ModelTensor& each : part.tensors) {
      Tensor tensor = source[each.source];
      std::uint32_t& first = first_of[tensor.alias_of == kNoIndex ? each.source : tensor.alias_of];
      tensor.alias_of = first;
      if (first == kNoIndex) first = static_cast<std::uint32_t>(catalog_.tensors.size());
      tensor.name = catalog_.arena->copy(each.name);
      tensor.path = {};
      catalog_.tensors.push_back(tensor);
      sources_.push_back(each.source);
    }
  }

  std::unique_ptr<Reader> inner_;
  Catalog catalog_;
  std::vector<std::uint32_t> sources_;  ///< By tensor: its index in inner_.
};

}  // namespace

std::unique_ptr<Reader> model_reader(std::unique_ptr<Reader> inner, const ModelPart& part) {
  return std::make_unique<ModelReader>(std::move(inner), part);
}

}  // namespace shard
