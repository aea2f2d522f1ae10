// The laws of outputs, over an object store in memory: files that wait for the commit, and files that are uploaded.
#include <gtest/gtest.h>

#include "libshard/stores/object_output.h"
#include "tests/stores/memory_bucket.h"
#include "tests/support/output_store_laws.h"

namespace shard::testing {
namespace {

const std::string kDestination = "s3://b/out";

class BucketOutput final : public OutputSubject {
 public:
  /// \param memory_bytes  with little, no file waits in memory
  explicit BucketOutput(std::int64_t memory_bytes) : memory_bytes_(memory_bytes) {}

  std::unique_ptr<OutputStore> store(bool force, bool is_root) override {
    return object_output(bucket_, kDestination, {},
                         {.force = force, .is_root = is_root, .memory_bytes = memory_bytes_, .connections = 2});
  }
  Files visible() override {
    Files files;
    for (const auto& [url, object] : bucket_.objects) files[url.substr(kDestination.size())] = bucket_.text(url);
    for (const auto& [name, upload] : bucket_.uploads) files["+" + name] = upload.url;
    return files;
  }
  void put(const std::string& end, const std::string& content) override {
    const auto bytes = test::as_span(content);
    bucket_.objects[kDestination + end] = {.bytes = {bytes.begin(), bytes.end()}, .etag = "theirs", .run = ""};
  }

 private:
  MemoryBucket bucket_;
  const std::int64_t memory_bytes_;
};

std::unique_ptr<OutputSubject> make_bucket() { return std::make_unique<BucketOutput>(32 << 20); }
std::unique_ptr<OutputSubject> make_bucket_of_uploads() { return std::make_unique<BucketOutput>(4); }

INSTANTIATE_TEST_SUITE_P(Kept, OutputStoreLaws, ::testing::Values(make_bucket));
INSTANTIATE_TEST_SUITE_P(Uploaded, OutputStoreLaws, ::testing::Values(make_bucket_of_uploads));

}  // namespace
}  // namespace shard::testing
