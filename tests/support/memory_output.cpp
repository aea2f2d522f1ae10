#include "tests/support/memory_output.h"

#include <algorithm>
#include <cstdint>

#include "libshard/core/error.h"

namespace shard::testing {

namespace {

class ObjectWriter final : public FileWriter {
 public:
  ObjectWriter(MemoryObjects& objects, std::string path, int rank)
      : objects_(objects), path_(std::move(path)), rank_(rank) {}
  void write_at(std::int64_t offset, std::span<const std::byte> data) override {
    const std::scoped_lock lock(objects_.mutex);
    std::vector<std::byte>& object = objects_.pending.at(path_);
    if (offset < 0 || offset + std::ssize(data) > std::ssize(object)) {
      throw Error(ErrorCode::kResource, "an object takes no more bytes than it was created with");
    }
    std::ranges::copy(data, object.begin() + offset);
    objects_.writes.push_back({path_, offset, std::ssize(data), rank_});
  }
  void read_back(std::int64_t offset, std::span<std::byte> out) override {
    const std::scoped_lock lock(objects_.mutex);
    const std::vector<std::byte>& object = objects_.pending.at(path_);
    std::copy_n(object.begin() + offset, out.size(), out.begin());
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

 private:
  MemoryObjects& objects_;
  const std::string path_;
  const int rank_;
};

class ObjectPart final : public OutputPart {
 public:
  ObjectPart(MemoryObjects& objects, int rank) : objects_(objects), rank_(rank) {}
  FileWriter& create(const OutputFile& file) override {
    const std::scoped_lock lock(objects_.mutex);
    if (!objects_.creators.emplace(file.path, rank_).second) {
      throw Error(ErrorCode::kResource, "the object was created before");
    }
    objects_.pending[file.path].resize(static_cast<std::size_t>(file.bytes));
    return add(file.path);
  }
  FileWriter& open(const std::string& path) override {
    const std::scoped_lock lock(objects_.mutex);
    if (!objects_.pending.contains(path)) throw Error(ErrorCode::kResource, "no such object");
    return add(path);
  }
  void finish() override { writers_.clear(); }

 private:
  FileWriter& add(const std::string& path) {
    writers_.push_back(std::make_unique<ObjectWriter>(objects_, path, rank_));
    return *writers_.back();
  }
  MemoryObjects& objects_;
  const int rank_;
  std::vector<std::unique_ptr<FileWriter>> writers_;
};

class ObjectOutput final : public Output {
 public:
  explicit ObjectOutput(MemoryObjects& objects) : objects_(objects) {}
  ~ObjectOutput() override { abort(); }
  std::vector<std::byte> token() const override { return {std::byte{42}}; }
  void prepare() override {}
  void commit() override { objects_.visible.swap(objects_.pending); }
  void take_back() override { objects_.visible.swap(objects_.pending); }
  void abort() noexcept override { objects_.pending.clear(); }

 private:
  MemoryObjects& objects_;
};

class ObjectStore final : public OutputStore {
 public:
  ObjectStore(std::shared_ptr<MemoryObjects> objects, int rank) : objects_(std::move(objects)), rank_(rank) {}
  std::int64_t free_bytes() const override { return INT64_MAX; }
  std::string place() const override { return "memory"; }
  std::unique_ptr<Output> begin(std::span<const OutputFile>, bool, std::unique_ptr<LeftOutput>) override {
    return std::make_unique<ObjectOutput>(*objects_);
  }
  std::unique_ptr<Output> begin_removal() override { return nullptr; }
  std::unique_ptr<OutputPart> part(std::span<const std::byte> token) override {
    if (token.size() != 1 || token[0] != std::byte{42}) throw Error(ErrorCode::kPeer, "not the root's token");
    return std::make_unique<ObjectPart>(*objects_, rank_);
  }

 private:
  std::shared_ptr<MemoryObjects> objects_;
  const int rank_;
};

}  // namespace

std::unique_ptr<OutputStore> memory_output(std::shared_ptr<MemoryObjects> objects, int rank) {
  return std::make_unique<ObjectStore>(std::move(objects), rank);
}

}  // namespace shard::testing
