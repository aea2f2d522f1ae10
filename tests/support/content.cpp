#include "tests/support/content.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "formats/detect.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/box.h"
#include "libshard/core/checked.h"
#include "libshard/exec/tensor_reader.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"
#include "libshard/ranks/collective_step.h"

namespace shard::testing {
namespace {

class BytesFile : public RandomReader {
 public:
  explicit BytesFile(std::vector<std::byte> bytes) : bytes_(std::move(bytes)) { name_ = "content"; }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    std::memcpy(out.data(), bytes_.data() + offset_bytes, out.size());
  }
  std::int64_t size() const override { return static_cast<std::int64_t>(bytes_.size()); }

 private:
  std::vector<std::byte> bytes_;
};

class ContentReader : public Reader {
 public:
  explicit ContentReader(const Content& content) {
    catalog_.format = "content";
    std::vector<std::byte> bytes;
    for (const auto& [name, tensor] : content) {
      const auto size = static_cast<std::int64_t>(tensor.bytes.size());
      std::vector<std::int64_t> strides(tensor.shape.size());
      row_major_strides(tensor.shape, strides);
      StoredTensor stored;
      stored.shape = catalog_.arena->dims(tensor.shape);
      stored.strides = catalog_.arena->dims(strides);
      stored.storage = static_cast<std::uint32_t>(catalog_.storages.size());
      stored.dtype = tensor.dtype;
      catalog_.storages.push_back({.offset = static_cast<std::int64_t>(bytes.size()), .bytes = size});
      CatalogBuilder(catalog_).add_tensor(catalog_.arena->copy(name), {}, stored);
      bytes.insert(bytes.end(), tensor.bytes.begin(), tensor.bytes.end());
    }
    catalog_.files.push_back({"content", static_cast<std::int64_t>(bytes.size()), -1});
    validate_catalog(catalog_);
    file_ = std::make_shared<BytesFile>(std::move(bytes));
  }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return file_; }

 private:
  Catalog catalog_;
  std::shared_ptr<const RandomReader> file_;
};

}  // namespace

ContentTensor random_tensor(std::mt19937_64& random, DType dtype, std::vector<std::int64_t> shape) {
  ContentTensor tensor{dtype, std::move(shape), {}};
  tensor.bytes.resize(static_cast<std::size_t>(checked_bytes(checked_numel(tensor.shape), dtype)));
  for (std::byte& each : tensor.bytes) {
    each = static_cast<std::byte>(random() & (dtype == DType::kBool ? 1 : 255));
  }
  return tensor;
}

Content random_content(std::mt19937_64& random, int tensors, std::int64_t most, std::span<const DType> dtypes) {
  Content content;
  for (int i = 0; i < tensors; ++i) {
    std::vector<std::int64_t> shape(random() % 5);
    for (std::int64_t& n : shape) n = static_cast<std::int64_t>(random() % static_cast<std::uint64_t>(most + 1));
    const DType dtype = dtypes[random() % dtypes.size()];
    // safetensors doubles the last dimension of packed float4, so the tensor needs one.
    if (dtype == DType::kFloat4E2m1fnX2 && shape.empty()) shape.push_back(2);
    content.emplace("part" + std::to_string(random() % 3) + ".w" + std::to_string(i),
                    random_tensor(random, dtype, std::move(shape)));
  }
  return content;
}

std::unique_ptr<Reader> content_reader(const Content& content) { return std::make_unique<ContentReader>(content); }

Content read_content(Reader& reader) {
  std::vector<std::uint32_t> all(reader.catalog().tensors.size());
  std::iota(all.begin(), all.end(), 0U);
  reader.locate(all);
  const Catalog& catalog = reader.catalog();
  Progress progress;
  Content content;
  for (const std::uint32_t i : all) {
    const Tensor& tensor = catalog.tensors[i];
    const std::int64_t numel = checked_numel(tensor.shape);
    ContentTensor found{tensor.dtype, {tensor.shape.begin(), tensor.shape.end()}, {}};
    found.bytes.resize(static_cast<std::size_t>(checked_bytes(numel, tensor.dtype)));
    TensorReader(catalog, reader, i, progress).read(0, numel, found.bytes);
    content.emplace(tensor.name, std::move(found));
  }
  return content;
}

CopyResult write_checkpoint(LocalDisk& fs, Reader& reader, const WriteCheckpoint& what) {
  return write_checkpoint(fs, solo_group(), reader, what);
}

CopyResult write_checkpoint(LocalDisk& fs, Group& group, Reader& reader, const WriteCheckpoint& what) {
  std::unique_ptr<OutputStore> output;  // Creating it checks the destination, which can fail on one rank.
  collective_step(group, {}, [&](const std::stop_token&) {
    output = local_output(fs, what.destination, {}, {.force = what.force});
  });
  return write_checkpoint(*output, group, reader, what, &fs);
}

CopyResult write_checkpoint(OutputStore& output, Group& group, Reader& reader, const WriteCheckpoint& what,
                            LocalDisk* reflink_disk) {
  const Format& format = format_named(what.format);
  CopyJob job;
  job.reader = &reader;
  const WriteOptions options{.single_file = what.single_file,
                             .base_name = what.single_file ? base_name(what.destination) : std::string(),
                             .rank_files = what.rank_files};
  job.target = selected_target(reader, select(reader.catalog(), {}), what.layout, traits_of(format, options));
  job.make_writer = [&format, options](const Catalog&) { return writer_of(format, options); };
  job.reflink_disk = reflink_disk;
  job.threads = what.threads;
  job.max_memory_bytes = what.max_memory_bytes;
  job.topology = what.topology;
  job.dry_run = what.dry_run;
  job.device = what.device;
  if (what.resume) job.version = "test";
  job.resume = what.resume;
  Progress own;
  return run_copy_job(output, group, job, what.progress != nullptr ? *what.progress : own, {});
}

std::unique_ptr<Reader> open_checkpoint(LocalDisk& fs, const std::string& path, const std::string& format) {
  const Source source{&fs, {path}};
  return (format.empty() ? detect_format(source) : format_named(format)).open(source, {});
}

}  // namespace shard::testing
