// The store of URLs is a SourceStore like any other, also through the functions of a plug-in. serve.py runs these
// tests.
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
#include "tests/support/source_store_laws.h"

namespace shard::stores {
namespace {

std::string served(const char* name) {
  const char* const value = std::getenv(name);
  if (value == nullptr) ADD_FAILURE() << name << " is not set: run serve.py";
  return value == nullptr ? "" : value;
}

/// A store of the server's URLs, through the functions of a plug-in.
std::unique_ptr<SourceStore> open_store(const StoreListener& listener, const HttpLimits& limits) {
  const Environment environment = [](const std::string& name) -> std::string {
    if (name == "AWS_ACCESS_KEY_ID") return served("SHARD_STORE_KEY_ID");
    if (name == "AWS_SECRET_ACCESS_KEY") return served("SHARD_STORE_SECRET");
    if (name == "HF_ENDPOINT") return served("SHARD_STORE_URL");
    return {};
  };
  StoreRequest request;
  request.endpoint = served("SHARD_STORE_URL");
  return from_c(to_c(remote_store(request, listener, environment, limits)));
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
  std::unique_ptr<SourceStore> make_store(const HttpLimits& limits = {}) { return open_store(listener, limits); }

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

TEST_F(RemoteFiles, OfAWholeBucketAreListed) {
  const auto store = make_store();
  EXPECT_EQ(store->status("s3://bucket").kind, FileKind::kFolder);
  EXPECT_THAT(store->list("s3://bucket"), ::testing::ElementsAre("a", "empty", "z.bin"));
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
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(15));  // It would stall for 20.
}

/// A folder of the server by one of its kinds of URLs.
class RemoteSource final : public testing::SourceSubject {
 public:
  RemoteSource(const std::string& files, std::string url, bool lists)
      : root_(served("SHARD_STORE_FOLDER") + "/" + files), url_(std::move(url)), lists_(lists) {
    std::filesystem::remove_all(root_);
  }
  void put(const std::string& name, const std::string& content) override {
    const std::filesystem::path path(root_ + "/" + name);
    std::filesystem::create_directories(path.parent_path());
    std::ofstream(path, std::ios::binary) << content;
  }
  const SourceStore& store() override {
    if (store_ == nullptr) store_ = open_store(listener_, {});
    return *store_;
  }
  std::string folder() const override { return url_; }
  bool can_list() const override { return lists_; }

 private:
  const std::string root_, url_;
  const bool lists_;
  const StoreListener listener_{nullptr, [](void*) { return false; }, [](void*, ConstBytes) {}};
  std::unique_ptr<SourceStore> store_;
};

std::unique_ptr<testing::SourceSubject> make_bucket() {
  return std::make_unique<RemoteSource>("s3/laws/of stores", "s3://laws/of stores", true);
}
std::unique_ptr<testing::SourceSubject> make_hub() {
  return std::make_unique<RemoteSource>("hub/org/laws", "hf://org/laws", true);
}
std::unique_ptr<testing::SourceSubject> make_web() {
  return std::make_unique<RemoteSource>("web/laws", served("SHARD_STORE_URL") + "/web/laws", false);
}

}  // namespace
}  // namespace shard::stores

namespace shard::testing {
INSTANTIATE_TEST_SUITE_P(Bucket, SourceStoreLaws, ::testing::Values(stores::make_bucket));
INSTANTIATE_TEST_SUITE_P(Hub, SourceStoreLaws, ::testing::Values(stores::make_hub));
INSTANTIATE_TEST_SUITE_P(Web, SourceStoreLaws, ::testing::Values(stores::make_web));
}  // namespace shard::testing
