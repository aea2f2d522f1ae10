// A RemoteStore is a SourceStore like any other, also through the functions of a plug-in. serve.py runs these tests.
#include "libshard/stores/remote/remote_store.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "libshard/stores/c_store.h"
#include "tests/support/expect_error.h"

namespace shard::stores {
namespace {

std::string served(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) ADD_FAILURE() << name << " is not set: run serve.py";
  return value == nullptr ? "" : value;
}

class RemoteFiles : public ::testing::Test {
 protected:
  RemoteFiles() {
    std::filesystem::remove_all(root);
    put("a/x", "0123456789");
    put("a/sub/y", "y");
    put("a/\xc3\xbc + %20", "umlaut");
    put("z.bin", std::string(100'000, 'z'));
    put("empty", "");
    play("");
  }

  void put(const std::string& key, const std::string& content) const {
    std::filesystem::create_directories(std::filesystem::path(root + key).parent_path());
    std::ofstream(root + key, std::ios::binary) << content;
  }
  void play(const std::string& fault) {
    HttpRequest request;
    request.method = "PUT";
    request.origin = served("SHARD_STORE_URL");
    request.target = "/_faults";
    request.body = fault;
    ASSERT_TRUE(transport.send_once(request, {}).is_ok());
  }
  std::unique_ptr<SourceStore> make_store(const HttpLimits& limits = {}) {
    const Environment environment = [](const std::string& name) -> std::optional<std::string> {
      if (name == "AWS_ACCESS_KEY_ID") return served("SHARD_STORE_KEY_ID");
      if (name == "AWS_SECRET_ACCESS_KEY") return served("SHARD_STORE_SECRET");
      return std::nullopt;
    };
    StoreRequest request;
    request.endpoint = served("SHARD_STORE_URL");
    return from_c(to_c(std::make_unique<RemoteStore>(request, listener, environment, limits)));
  }

  std::atomic<bool> stops{false};
  std::atomic<int> waits{0};
  const StoreListener listener{this, [](void* place) { return static_cast<RemoteFiles*>(place)->stops.load(); },
                               [](void* place, ConstBytes) { ++static_cast<RemoteFiles*>(place)->waits; }};
  Transport transport{{}, listener};
  const std::string root = served("SHARD_STORE_FOLDER") + "/s3/bucket/";
};

std::string read_text(const RandomReader& file, std::int64_t offset, std::size_t bytes) {
  std::string text(bytes, '\0');
  file.read_at(offset, std::as_writable_bytes(std::span(text)));
  return text;
}

TEST_F(RemoteFiles, HaveKindsSizesAndIdentities) {
  const auto store = make_store();
  EXPECT_EQ(store->status("s3://bucket").kind, FileKind::kFolder);
  EXPECT_EQ(store->status("s3://bucket/a").kind, FileKind::kFolder);
  EXPECT_EQ(store->status("s3://bucket/a/").kind, FileKind::kFolder);
  EXPECT_EQ(store->status("s3://bucket/a/sub").kind, FileKind::kFolder);
  const FileStatus file = store->status("s3://bucket/a/x");
  EXPECT_EQ(file.kind, FileKind::kFile);
  EXPECT_EQ(file.bytes, 10);
  EXPECT_TRUE(file.identity().is_known());
  EXPECT_FALSE(is_same(file, store->status("s3://bucket/a/sub/y")));
  EXPECT_EQ(store->status("s3://bucket/a/absent").kind, FileKind::kAbsent);
  EXPECT_EQ(store->status("s3://bucket/absent").kind, FileKind::kAbsent);
  EXPECT_EQ(store->status("s3://bucket/absent.bin").kind, FileKind::kAbsent);
}

TEST_F(RemoteFiles, AreListedSortedOneFolderAtATime) {
  const auto store = make_store();
  EXPECT_THAT(store->list("s3://bucket/a"), ::testing::ElementsAre("sub", "x", "\xc3\xbc + %20"));
  EXPECT_THAT(store->list("s3://bucket"), ::testing::ElementsAre("a", "empty", "z.bin"));
  test::expect_error(ErrorCode::kNotFound, "no such folder", [&] { store->list("s3://bucket/absent"); });
  test::expect_error(ErrorCode::kNotFound, "is a file, not a folder", [&] { store->list("s3://bucket/a/x"); });
}

TEST_F(RemoteFiles, AreReadAtAnyOffset) {
  const auto store = make_store();
  const auto file = store->open("s3://bucket/a/x");
  EXPECT_EQ(file->size(), 10);
  EXPECT_EQ(file->name(), "s3://bucket/a/x");
  EXPECT_EQ(read_text(*file, 3, 4), "3456");
  EXPECT_EQ(read_text(*file, 10, 0), "");
  test::expect_error(ErrorCode::kCorruption, "the file ends at byte 10", [&] { read_text(*file, 8, 3); });
  EXPECT_EQ(store->open("s3://bucket/empty")->size(), 0);
  EXPECT_EQ(read_text(*store->open("s3://bucket/a/\xc3\xbc + %20"), 0, 6), "umlaut");
  EXPECT_EQ(file->identity(), store->status("s3://bucket/a/x").identity());
}

TEST_F(RemoteFiles, ThatDoNotExistAreErrors) {
  const auto store = make_store();
  test::expect_error(ErrorCode::kNotFound, "no such file", [&] { store->open("s3://bucket/a/absent"); });
  test::expect_error(ErrorCode::kNotFound, "is a folder, not a file", [&] { store->open("s3://bucket/a"); });
}

TEST_F(RemoteFiles, AreOpenedOnlyBelowTheirFolder) {
  const auto store = make_store();
  EXPECT_EQ(store->open_below("s3://bucket/a", "sub/y")->size(), 1);
  for (const char* const name : {"../z.bin", "/z.bin", "sub/../x", "", "sub//y"}) {
    test::expect_error(ErrorCode::kCorruption, "points outside", [&] { store->open_below("s3://bucket/a", name); });
  }
}

TEST_F(RemoteFiles, AreReadByManyThreads) {
  const auto store = make_store();
  const auto file = store->open("s3://bucket/z.bin");
  std::vector<std::jthread> threads;
  for (int i = 0; i < 8; ++i) {
    threads.emplace_back([&, i] { EXPECT_EQ(read_text(*file, i * 1000, 50'000), std::string(50'000, 'z')); });
  }
}

TEST_F(RemoteFiles, ThatAreReplacedAreErrorsAtTheNextRequest) {
  const auto store = make_store();
  const auto file = store->open("s3://bucket/a/x");
  put("a/x", "9876543210");
  test::expect_error(ErrorCode::kCorruption, "the file changed while it was being read",
                     [&] { read_text(*file, 0, 10); });
}

TEST_F(RemoteFiles, AnswersThatStallAreRequestedAgain) {
  HttpLimits limits;
  limits.stall = std::chrono::milliseconds(300);
  const auto store = make_store(limits);
  const auto file = store->open("s3://bucket/z.bin");
  play(R"({"match": "z.bin", "kind": "stall", "value": "3"})");
  EXPECT_EQ(read_text(*file, 0, 100'000), std::string(100'000, 'z'));
  EXPECT_EQ(waits, 1);
}

TEST_F(RemoteFiles, RequestsEndSoonAfterTheyShouldStop) {
  const auto store = make_store();
  const auto file = store->open("s3://bucket/z.bin");
  play(R"({"match": "z.bin", "kind": "stall", "value": "20"})");
  const auto begin = std::chrono::steady_clock::now();
  const std::jthread stopper([this] {
    std::this_thread::sleep_for(std::chrono::milliseconds(200));
    stops = true;
  });
  test::expect_error(ErrorCode::kInterrupted, "interrupted", [&] { read_text(*file, 0, 100'000); });
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5));
}

}  // namespace
}  // namespace shard::stores
