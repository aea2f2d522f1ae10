// The files beside a model's weights: those that belong to it, and a writer that adds them to its own.
#include "formats/export/model_folder.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/bytes.h"
#include "tests/support/cpu_time.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

/// Writes one file, "own".
class OneFile final : public Writer {
 public:
  void place(Catalog& target) override { target.files.push_back({"own", 1}); }
  bool is_folder() const override { return true; }
};

class WrittenText final : public FileWriter {
 public:
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    text.resize(std::max(text.size(), static_cast<std::size_t>(offset_bytes) + data.size()));
    std::ranges::transform(data, text.begin() + offset_bytes, [](std::byte each) { return static_cast<char>(each); });
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

  std::string text;
};

struct ModelFolder : ::testing::Test {
  ModelFolder() {
    for (const char* name : {"config.json", "modeling.py", "tokenizer.json", "model.safetensors"}) put(name, name);
  }

  void put(const std::string& name, const std::string& content) { state->put("/m/" + name, test::as_span(content)); }

  CarriedFiles carried(bool is_above = false, bool holds_files = false) const {
    return carried_files(*disk, {"/m", is_above}, FilesOf::kModel, false, holds_files);
  }

  /// The target's file of that number, as written.
  static std::string written(Writer& writer, const Catalog& target, std::uint32_t file) {
    WrittenText to;
    writer.begin_file(target, file, to);
    return to.text;
  }

  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk = make_memory_disk(state);
};

TEST_F(ModelFolder, AConfigOfManyTextConfigsIsReadInLinearTime) {
  std::string text = "{\"tie_word_embeddings\": true";
  for (int i = 0; i < 200'000; ++i) text += ",\"text_config\":1";
  put("config.json", text + "}");
  EXPECT_LT(test::cpu_seconds([&] { EXPECT_TRUE(read_model_config(*disk, "/m").ties_embeddings); }),
            test::cpu_limit(0.5));
}

TEST_F(ModelFolder, FilesOfTheModelAreThoseWithoutItsWeights) {
  const CarriedFiles files = carried();
  EXPECT_THAT(files.listed.names, ElementsAre("config.json", "modeling.py", "tokenizer.json"));
  EXPECT_THAT(files.listed.code, ElementsAre("modeling.py"));
  EXPECT_THAT(files.paths, ElementsAre("/m/config.json", "/m/modeling.py", "/m/tokenizer.json"));
}

TEST_F(ModelFolder, ModulesAboveTheSourceAreNotCopied) {
  const CarriedFiles files = carried(true);
  EXPECT_THAT(files.listed.names, ElementsAre("config.json", "tokenizer.json"));
  EXPECT_THAT(files.listed.code_above, ElementsAre("modeling.py"));
  EXPECT_THAT(files.listed.code, IsEmpty());
}

TEST_F(ModelFolder, AThousandFilesAreCopiedAndNoMore) {
  for (int i = 0; i < 997; ++i) put("module" + std::to_string(i) + ".py", "");
  EXPECT_EQ(carried().files.size(), 1000U);
  put("one_more.py", "");
  test::expect_error(ErrorCode::kUnsupported, "cannot copy the 1001 files", [&] { carried(); });
}

TEST_F(ModelFolder, AddedFilesFollowThoseOfTheFormat) {
  const std::unique_ptr<Writer> writer = with_added_files(std::make_unique<OneFile>(), carried().files, nullptr);
  Catalog target;
  writer->place(target);
  ASSERT_EQ(target.files.size(), 4U);
  EXPECT_EQ(target.files[0].path, "own");
  EXPECT_EQ(target.files[3].path, "tokenizer.json");
  EXPECT_EQ(target.files[3].bytes, 14);
  EXPECT_EQ(written(*writer, target, 0), "");
  EXPECT_EQ(written(*writer, target, 2), "modeling.py");
}

TEST_F(ModelFolder, AFileWhoseSizeChangedIsRefusedUnlessItIsHeld) {
  for (const bool holds_files : {false, true}) {
    put("config.json", "config.json");
    const std::unique_ptr<Writer> writer =
        with_added_files(std::make_unique<OneFile>(), carried(false, holds_files).files, nullptr);
    Catalog target;
    writer->place(target);
    put("config.json", "longer than it was");
    if (holds_files) {
      EXPECT_EQ(written(*writer, target, 1), "config.json");
    } else {
      test::expect_error(ErrorCode::kCorruption, "changed while it was copied", [&] { written(*writer, target, 1); });
    }
  }
}

}  // namespace
}  // namespace shard
