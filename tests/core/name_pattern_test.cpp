#include "libshard/core/name_pattern.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shard {
namespace {

using ::testing::ElementsAre;
using Two = std::array<std::int64_t, 2>;

TEST(NamePattern, ReadsTheNumbersOfItsFields) {
  const NamePattern pattern("__{rank}_{number}.distcp");
  EXPECT_EQ(pattern.read<2>("__12_3.distcp"), (Two{12, 3}));
  EXPECT_EQ(pattern.read<2>("__0012_0.distcp"), (Two{12, 0})) << "zeros before a number";
  EXPECT_EQ(pattern.read<2>("__9223372036854775807_0.distcp"), (Two{INT64_MAX, 0}));
}

TEST(NamePattern, RefusesNamesOfAnotherForm) {
  const NamePattern pattern("__{rank}_{number}.distcp");
  for (const char* name : {"", "__1_2.distcp2", "_1_2.distcp", "__1_.distcp", "__-1_2.distcp", "__+1_2.distcp", "__1_2",
                           "x__1_2.distcp", "__9223372036854775808_0.distcp"}) {
    EXPECT_FALSE(pattern.fits(name)) << name;
  }
}

TEST(NamePattern, WritesLeastDigits) {
  const NamePattern pattern("model-{file:05d}-of-{count:05d}.safetensors");
  EXPECT_EQ(pattern.write(Two{3, 1234567}), "model-00003-of-1234567.safetensors");
  EXPECT_EQ(NamePattern("r{rank}").write(std::array<std::int64_t, 1>{7}), "r7");
  EXPECT_EQ(NamePattern("plain").write({}), "plain");
}

TEST(CountedName, HasItsNumberAndItsCount) {
  const std::optional<CountedName> name = read_counted_name("model.fp16-00001-of-00003.safetensors");
  ASSERT_TRUE(name);
  EXPECT_EQ(name->base, "model.fp16-");
  EXPECT_EQ(name->number, "00001");
  EXPECT_EQ(name->count, "00003");
  EXPECT_EQ(name->end, ".safetensors");
  EXPECT_EQ(read_counted_name("one-1-of-2-1-of-3")->base, "one-1-of-2-") << "the last count";
  EXPECT_EQ(read_counted_name("a-1-of-2.fp16.bin")->end, ".fp16.bin");
  EXPECT_EQ(read_counted_name("-1-of-2")->base, "-");
}

TEST(CountedName, IsOneOnlyWithBothNumbers) {
  for (const char* name : {"", "model.safetensors", "1-of-2.bin", "a-of-2.bin", "a-1-of-.bin", "a-x1-of-2.bin",
                           "a-1-of-2x.bin", "a-1-of-0000000002.bin", "a--of-2.bin"}) {
    EXPECT_FALSE(read_counted_name(name)) << name;
  }
}

TEST(NamePattern, ReadsWhatItWrites) {
  const NamePattern pattern("a{x:03d}b{y}");
  for (const std::int64_t x : {0, 7, 999, 1000}) {
    EXPECT_EQ(pattern.read<2>(pattern.write(Two{x, x + 1})), (Two{x, x + 1}));
  }
}

TEST(NamePattern, KnowsItsFields) {
  const NamePattern pattern("{tp:02d}/{pp}.pt");
  ASSERT_EQ(pattern.parts().size(), 3U);
  EXPECT_EQ(pattern.parts()[0].field, "tp");
  EXPECT_EQ(pattern.parts()[0].digits, 2U);
  EXPECT_EQ(pattern.parts()[1].text, "/");
  EXPECT_EQ(pattern.parts()[2].text, ".pt");
  EXPECT_EQ(pattern.parts()[2].field, "");
}

TEST(NamePattern, BracesThatAreNoFieldsAreNone) {
  for (const char* text : {"{", "}", "{}", "a{b", "a}b", "{a{b}}", "{a:}", "{a:5d}", "{a:05}", "{a:00d}", "{a:010d}"}) {
    EXPECT_FALSE(NamePattern::parse(text)) << text;
  }
}

TEST(CutAtNumbers, AlternatesTextsAndDigits) {
  EXPECT_THAT(cut_at_numbers("step5-r01.pt"), ElementsAre("step", "5", "-r", "01", ".pt"));
  EXPECT_THAT(cut_at_numbers("5a"), ElementsAre("", "5", "a"));
  EXPECT_THAT(cut_at_numbers("a5"), ElementsAre("a", "5"));
  EXPECT_THAT(cut_at_numbers(""), ElementsAre(""));
}

TEST(NamesOfOneSet, DifferInNumbersOnly) {
  EXPECT_EQ(without_numbers("rank_12_of_4.pt"), without_numbers("rank_3_of_4.pt"));
  EXPECT_NE(without_numbers("rank_12.pt"), without_numbers("rank_12.pth"));
  EXPECT_EQ(shell_pattern(std::vector<std::string>{"m_w2_r0.pt", "m_w2_r1.pt"}), "m_w2_r*.pt");
  EXPECT_EQ(shell_pattern(std::vector<std::string>{"m_w2_r0.pt"}), "m_w2_r0.pt");
}

}  // namespace
}  // namespace shard
