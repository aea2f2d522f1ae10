// A sink that collects receives all problems of a checkpoint; a sink that throws stops at the first one.
#include "libshard/core/findings.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "formats/registry.h"
#include "libshard/exec/tensor_reader.h"
#include "tests/catalog/build.h"
#include "tests/formats/dcp_hf_files.h"
#include "tests/formats/rank_files.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"

namespace shard::testing {
namespace {

using ::testing::ElementsAre;

ContentTensor filled(DType dtype, std::vector<std::int64_t> shape, char with) {
  std::int64_t count = 1;
  for (const std::int64_t side : shape) count *= side;
  const auto bytes = static_cast<std::size_t>(checked_bytes(count, dtype));
  return {dtype, std::move(shape), std::vector<std::byte>(bytes, static_cast<std::byte>(with))};
}

/// A checkpoint in memory, written by this project and then damaged.
class Damaged {
 public:
  Damaged(const std::string& format, const Content& content, const Layout& layout = WholeLayout{}) : format_(format) {
    const std::unique_ptr<Reader> reader = content_reader(content);
    write_checkpoint(*disk_, *reader, {.format = format, .destination = "/c", .layout = layout});
  }

  /// Replaces the first `what` by `with`.
  void replace(const std::string& name, const std::string& what, const std::string& with) {
    std::string text(test::as_text(state_->content("/c/" + name)));
    text.replace(text.find(what), what.size(), with);
    state_->put("/c/" + name, test::as_span(text));
  }
  void cut(const std::string& name, std::size_t bytes) {
    const std::vector<std::byte> whole = state_->content("/c/" + name);
    state_->put("/c/" + name, std::span<const std::byte>(whole).first(bytes));
  }
  void remove(const std::string& name) { disk_->remove_all("/c/" + name); }

  std::unique_ptr<Reader> open(Findings& findings = throwing_findings()) {
    OpenOptions options;
    options.findings = &findings;
    return format_named(format_).open({disk_.get(), {"/c"}}, options);
  }

 private:
  std::string format_;
  std::shared_ptr<MemoryState> state_ = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> disk_ = make_memory_disk(state_);
};

/// Reads every tensor that is fit to be read.
void read_all(Reader& reader, Findings& findings) {
  Progress progress;
  std::vector<std::uint32_t> all;
  for (std::uint32_t i = 0; i < reader.catalog().tensors.size(); ++i) {
    if (!reader.catalog().tensors[i].damaged) all.push_back(i);
  }
  reader.locate(all);
  for (const std::uint32_t i : all) {
    const Tensor& tensor = reader.catalog().tensors[i];
    const std::int64_t count = checked_numel(tensor.shape);
    std::vector<std::byte> out(static_cast<std::size_t>(checked_bytes(count, tensor.dtype)));
    TensorReader(reader.catalog(), reader, i, progress, findings).read(0, count, out);
  }
}

std::vector<std::string> tensors_of(const CollectedFindings& findings) {
  std::vector<std::string> names;
  for (const Error& finding : findings.all()) names.push_back(finding.tensor());
  return names;
}

std::vector<std::string> files_of(const CollectedFindings& findings) {
  std::vector<std::string> names;
  for (const Error& finding : findings.all()) names.push_back(finding.file());
  return names;
}

TEST(Findings, OfDcpAreGapsAndChunksOutOfBoundsOfEveryTensorAndChecksumsWhenItIsRead) {
  Damaged damaged("dcp", {{"a", filled(DType::kUint8, {5, 7}, 'A')},
                          {"b", filled(DType::kUint8, {6, 11}, 'B')},
                          {"c", filled(DType::kUint8, {9, 13}, 'C')},
                          {"fine", filled(DType::kUint8, {300}, 'D')}});
  damaged.replace(".metadata", "K\x05K\x07", "K\x06K\x07");  // The tensor's shape precedes its chunks'.
  damaged.replace(".metadata", "K\x06K\x0b", "K\x06K\x0c");
  damaged.replace(".metadata", "K\x09K\x0d", "K\x08K\x0d");
  damaged.replace("__0_0.distcp", "DDDD", "DDdD");
  CollectedFindings findings;
  const std::unique_ptr<Reader> reader = damaged.open(findings);
  read_all(*reader, findings);
  EXPECT_THAT(findings.kinds(),
              ElementsAre(FindingKind::kGap, FindingKind::kGap, FindingKind::kOutOfBounds, FindingKind::kCrcMismatch));
  EXPECT_THAT(tensors_of(findings), ElementsAre("a", "b", "c", ""));
  EXPECT_THAT(files_of(findings), ElementsAre(".metadata", ".metadata", ".metadata", "__0_0.distcp"));
  const Error first = test::error_of([&] { damaged.open(); });
  EXPECT_EQ(first.kind(), FindingKind::kGap);
  EXPECT_EQ(first.tensor(), "a");
}

TEST(Findings, OfTorchAreEveryFilesAndChecksums) {
  Content content;
  for (const char* name : {"a", "b", "c", "d"}) content[name] = filled(DType::kUint8, {300}, *name);
  Damaged damaged("torch", content, ShardsLayout{4});
  damaged.cut("pytorch_model-00001-of-00004.bin", 100);
  damaged.remove("pytorch_model-00002-of-00004.bin");
  damaged.replace("pytorch_model-00004-of-00004.bin", "dddd", "ddDd");
  CollectedFindings findings;
  const std::unique_ptr<Reader> reader = damaged.open(findings);
  read_all(*reader, findings);
  EXPECT_THAT(findings.kinds(),
              ElementsAre(FindingKind::kTruncated, FindingKind::kMissingFile, FindingKind::kCrcMismatch));
  EXPECT_THAT(test::names_of(reader->catalog().tensors), ElementsAre("c", "d"));
  EXPECT_EQ(test::error_of([&] { damaged.open(); }).kind(), FindingKind::kTruncated);
}

TEST(Findings, OfSafetensorsAreEveryFiles) {
  Content content;
  for (const char* name : {"a", "b", "c", "d"}) content[name] = filled(DType::kUint8, {300}, *name);
  Damaged damaged("safetensors", content, ShardsLayout{4});
  damaged.cut("model-00001-of-00004.safetensors", 100);
  damaged.remove("model-00002-of-00004.safetensors");
  damaged.replace("model-00003-of-00004.safetensors", "300", "301");
  CollectedFindings findings;
  const std::unique_ptr<Reader> reader = damaged.open(findings);
  ASSERT_EQ(findings.all().size(), 3U);
  EXPECT_EQ(findings.kinds()[1], FindingKind::kMissingFile);
  EXPECT_THAT(test::names_of(reader->catalog().tensors), ElementsAre("a", "d"));  // The header of a's file is whole.
  EXPECT_TRUE(reader->catalog().find("a")->damaged);
  EXPECT_EQ(findings.all()[0].tensor(), "a");
  EXPECT_EQ(test::error_of([&] { damaged.open(); }).kind(), findings.kinds()[0]);
}

TEST(Findings, OfDcpHfAreGapsOfEveryTensorAndFilesThatCannotBeRead) {
  test::DcpHfFolder folder;
  folder.put_first();
  folder.put_second(test::changed(test::kSecondHeader, "[3, 0]", "[4, 0]"));
  folder.put("shard-00003-model-00001-of-00001.safetensors", "[]", "");
  CollectedFindings findings;
  OpenOptions options;
  options.findings = &findings;
  const std::unique_ptr<Reader> reader = folder.open(options);
  EXPECT_THAT(findings.kinds(), ElementsAre(FindingKind::kBadHeader, FindingKind::kGap));
  EXPECT_THAT(tensors_of(findings), ElementsAre("", "w"));
  EXPECT_THAT(findings.all()[1].hint(), ::testing::HasSubstr("a missing shard"));
  EXPECT_FALSE(reader->catalog().find("b")->damaged);
  EXPECT_TRUE(reader->catalog().find("w")->damaged);
}

/// Three ranks with two ShardedTensors of rows and a plain tensor.
RankFolder three_ranks() {
  RankFolder folder;
  for (int rank = 0; rank < 3; ++rank) {
    RankFileMaker maker;
    const auto value = static_cast<float>(rank);
    maker.put_rows("v", rank, {{0, 1}, {1, 2}, {2, 3}}, 2, {value, value});
    maker.put_rows("w", rank, {{0, 1}, {1, 2}, {2, 3}}, 2, {value, value});
    maker.put("plain", maker.floats({2}, {1, 2}));
    folder.put("rank_" + std::to_string(rank) + ".pt", maker);
  }
  return folder;
}

TEST(Findings, OfTorchRanksAreFilesThatCannotBeReadRanksThatAreMissingAndTheGapsTheyLeave) {
  RankFolder folder = three_ranks();
  folder.put("rank_1.pt", folder.content("rank_1.pt").substr(0, 200));
  CollectedFindings findings;
  OpenOptions options;
  options.findings = &findings;
  const std::unique_ptr<Reader> reader = folder.open(options);
  EXPECT_THAT(findings.kinds(),
              ElementsAre(FindingKind::kTruncated, FindingKind::kMissingFile, FindingKind::kGap, FindingKind::kGap));
  EXPECT_THAT(tensors_of(findings), ElementsAre("", "", "v", "w"));
  EXPECT_EQ(findings.all()[1].rank(), 1);
  ASSERT_THAT(test::names_of(reader->catalog().tensors), ElementsAre("plain"));
  EXPECT_EQ(reader->catalog().root, nullptr);
  EXPECT_EQ(reader->catalog().world_size, 3);
}

TEST(Findings, OfTorchRanksAreRanksThatAppearTwice) {
  RankFolder folder = three_ranks();
  folder.put("rank_2.pt", folder.content("rank_0.pt"));
  CollectedFindings findings;
  OpenOptions options;
  options.findings = &findings;
  folder.open(options);
  EXPECT_THAT(findings.kinds(),
              ElementsAre(FindingKind::kRankMismatch, FindingKind::kMissingFile, FindingKind::kGap, FindingKind::kGap));
  EXPECT_EQ(test::error_of([&] { folder.open(); }).kind(), FindingKind::kRankMismatch);
}

}  // namespace
}  // namespace shard::testing
