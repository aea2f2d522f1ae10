// The laws of stores, over the local disk and the one in memory.
#include <gtest/gtest.h>

#include <filesystem>

#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "libshard/io/stoppable_store.h"
#include "libshard/io/watched_store.h"
#include "tests/support/memory_disk.h"
#include "tests/support/output_store_laws.h"
#include "tests/support/source_store_laws.h"
#include "tests/support/temp_folder.h"

namespace shard::testing {
namespace {

class PosixSource : public SourceSubject {
 public:
  void put(const std::string& name, const std::string& content) override { temp_.write("a/" + name, content); }
  const SourceStore& store() override { return posix_disk(); }
  std::string folder() const override { return temp_ / "a"; }

 private:
  test::TempFolder temp_;
};

class MemorySource : public SourceSubject {
 public:
  void put(const std::string& name, const std::string& content) override {
    state_->put("/a/" + name, test::as_span(content));
  }
  const SourceStore& store() override { return *disk_; }
  std::string folder() const override { return "/a"; }

 private:
  std::shared_ptr<MemoryState> state_ = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk_ = make_memory_disk(state_);
};

/// The store of every verb, around the disk.
class WrappedSource final : public PosixSource {
 public:
  const SourceStore& store() override { return watched_; }

 private:
  StoppableStore stoppable_{posix_disk(), [] { return false; }};
  WatchedStore watched_{stoppable_};
};

template <class Subject>
std::unique_ptr<SourceSubject> make_source() {
  return std::make_unique<Subject>();
}

INSTANTIATE_TEST_SUITE_P(Posix, SourceStoreLaws, ::testing::Values(make_source<PosixSource>));
INSTANTIATE_TEST_SUITE_P(Memory, SourceStoreLaws, ::testing::Values(make_source<MemorySource>));
INSTANTIATE_TEST_SUITE_P(Watched, SourceStoreLaws, ::testing::Values(make_source<WrappedSource>));

class PosixOutput final : public OutputSubject {
 public:
  std::unique_ptr<OutputStore> store(bool force, bool) override {
    return local_output(posix_disk(), temp_ / "out", {}, {.force = force, .sync = false});
  }
  Files visible() override {
    Files files;
    for (const auto& each : std::filesystem::recursive_directory_iterator(temp_.path())) {
      const std::string name = each.path().string().substr(temp_.path().size() + 1);
      if (each.is_regular_file()) files[end_of(name)] = temp_.read(name);
    }
    return files;
  }
  void put(const std::string& end, const std::string& content) override { temp_.write("out" + end, content); }

 private:
  /// The siblings of an unfinished output have other names.
  static std::string end_of(const std::string& name) { return name.starts_with("out") ? name.substr(3) : "+" + name; }
  test::TempFolder temp_;
};

class MemoryOutput final : public OutputSubject {
 public:
  std::unique_ptr<OutputStore> store(bool force, bool) override {
    return local_output(*disk_, "/out", {}, {.force = force});
  }
  Files visible() override {
    Files files;
    for (const std::string& path : state_->paths()) {
      if (disk_->status(path).kind != FileKind::kFile) continue;
      files[path.starts_with("/out") ? path.substr(4) : "+" + path] = test::as_text(state_->content(path));
    }
    return files;
  }
  void put(const std::string& end, const std::string& content) override {
    state_->put("/out" + end, test::as_span(content));
  }

 private:
  std::shared_ptr<MemoryState> state_ = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk_ = make_memory_disk(state_);
};

template <class Subject>
std::unique_ptr<OutputSubject> make_output() {
  return std::make_unique<Subject>();
}

INSTANTIATE_TEST_SUITE_P(Posix, OutputStoreLaws, ::testing::Values(make_output<PosixOutput>));
INSTANTIATE_TEST_SUITE_P(Memory, OutputStoreLaws, ::testing::Values(make_output<MemoryOutput>));

}  // namespace
}  // namespace shard::testing
