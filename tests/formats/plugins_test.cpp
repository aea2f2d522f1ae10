#include "formats/plugins.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/detect.h"
#include "formats/registry.h"
#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using test::expect_error;
using ::testing::Contains;
using ::testing::HasSubstr;

/// Formats are registered for the whole process, and each test may run in a separate one.
class ToyPlugin : public ::testing::Test {
 protected:
  ToyPlugin() { load_format_plugin(SHARD_TOY_FORMATS); }
  void put(const std::string& path, const std::string& content) { state->put(path, test::as_span(content)); }

  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
};

TEST_F(ToyPlugin, RegistersBothFormats) {
  EXPECT_THAT(format_names(), Contains("toy"));
  EXPECT_THAT(format_names(), Contains("toy-two"));
  EXPECT_EQ(format_of_suffix("/d/x.toy2"), "toy-two");
}

TEST_F(ToyPlugin, IsRegisteredOnceHoweverOftenItIsLoaded) {
  const std::size_t count = formats().size();
  load_format_plugin(SHARD_TOY_FORMATS);
  EXPECT_EQ(formats().size(), count);
}

TEST_F(ToyPlugin, IsDetectedAndRead) {
  put("/d/x", "TOY2 and more");
  const Source source{fs.get(), {"/d/x"}};
  EXPECT_EQ(detect_format(source).traits.name, "toy-two");
  EXPECT_EQ(test::as_text(testing::read_content(*testing::open_checkpoint(*fs, "/d/x")).at("x").bytes),
            "TOY2 and more");
}

TEST_F(ToyPlugin, IsWritten) {
  put("/d/x", "TOY1!");
  testing::write_checkpoint(*fs, *testing::open_checkpoint(*fs, "/d/x"),
                            {.format = "toy", .destination = "/d/y.toy", .single_file = true});
  EXPECT_EQ(test::as_text(state->content("/d/y.toy")), "TOY1!");
}

TEST(RegisterFormat, RefusesAnotherFormatOfAKnownName) {
  static const Format other = *formats().front();
  expect_error(ErrorCode::kUnsupported, "a format of this name exists", [] { register_format(other); });
}

TEST(FormatPlugin, ThatIsAbsentHasItsSuffixesNonetheless) {
  EXPECT_EQ(format_of_suffix("a.h5"), "hdf5");
  EXPECT_EQ(format_of_suffix("/d/a.hdf5"), "hdf5");
}

TEST(FormatPlugin, ThatCannotBeOpenedSaysWhy) {
  const Error error = test::error_of([] { load_format_plugin("/no/such.so"); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_THAT(error.what(), HasSubstr("cannot open the plug-in such.so"));
  EXPECT_THAT(error.why(), HasSubstr("No such file"));
}

TEST(FormatPlugin, WithoutTheEntryIsOfADifferentVersion) {
  expect_error(ErrorCode::kUnsupported, "belongs to a different version",
               [] { load_format_plugin(SHARD_OTHER_LIBRARY); });
}

TEST(FormatOfSuffix, IsThatOfSingleFilesAlone) {
  EXPECT_EQ(format_of_suffix("out/model.pt"), "torch");
  EXPECT_EQ(format_of_suffix("model.safetensors"), "safetensors");
  EXPECT_EQ(format_of_suffix("model.pt/"), "");  // A folder.
  EXPECT_EQ(format_of_suffix("out/.pt"), "");    // A name, not a suffix.
  EXPECT_EQ(format_of_suffix("out"), "");
}

}  // namespace
}  // namespace shard
