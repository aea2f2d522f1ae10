#include "libshard/core/error.h"

#include <gtest/gtest.h>

#include <new>
#include <string>
#include <system_error>

#include "libshard/core/error_text.h"
#include "libshard/core/short_text.h"

namespace shard {
namespace {

TEST(Error, CarriesWhatItWasBuiltWith) {
  try {
    throw Error(ErrorCode::kCorruption, "header ends after the file")
        .in_file("a.safetensors")
        .of_tensor("w")
        .because("the file is truncated")
        .hint("fetch it again")
        .expected(812)
        .found("600 bytes")
        .of_rank(3)
        .of_kind(FindingKind::kTruncated);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::kCorruption);
    EXPECT_STREQ(e.what(), "header ends after the file");
    EXPECT_EQ(e.file(), "a.safetensors");
    EXPECT_EQ(e.tensor(), "w");
    EXPECT_EQ(e.why(), "the file is truncated");
    EXPECT_EQ(e.hint(), "fetch it again");
    EXPECT_EQ(e.expected(), "812");
    EXPECT_EQ(e.found(), "600 bytes");
    EXPECT_EQ(e.rank(), 3);
    EXPECT_EQ(e.kind(), FindingKind::kTruncated);
  }
}

TEST(Error, IsAboutContentUnlessItWouldAlsoStopTheReadingOfAnIntactFile) {
  for (const ErrorCode code : {ErrorCode::kInterrupted, ErrorCode::kPeer, ErrorCode::kResource}) {
    EXPECT_FALSE(is_about_content(Error(code, "stopped"))) << code_name(code);
  }
  for (const ErrorCode code : {ErrorCode::kCorruption, ErrorCode::kNotFound, ErrorCode::kUnsupported}) {
    EXPECT_TRUE(is_about_content(Error(code, "damaged"))) << code_name(code);
  }
}

TEST(Error, KeepsTheInnermostFile) {
  Error error(ErrorCode::kNotFound, "gone");
  error.in_file("inner").in_file("outer");
  EXPECT_EQ(error.file(), "inner");
}

TEST(Error, HasNothingByDefault) {
  const Error error(ErrorCode::kResource, "full");
  EXPECT_EQ(error.file() + error.tensor() + error.why() + error.hint() + error.expected() + error.found(), "");
  EXPECT_EQ(error.rank(), std::nullopt);
}

TEST(CodeName, IsAWordForEveryCode) {
  EXPECT_EQ(code_name(ErrorCode::kInvalidArgument), "invalid_argument");
  EXPECT_EQ(code_name(ErrorCode::kNotFound), "not_found");
  EXPECT_EQ(code_name(ErrorCode::kCorruption), "corruption");
  EXPECT_EQ(code_name(ErrorCode::kExists), "exists");
  EXPECT_EQ(code_name(ErrorCode::kResource), "resource");
  EXPECT_EQ(code_name(ErrorCode::kPeer), "peer");
  EXPECT_EQ(code_name(ErrorCode::kUnsupported), "unsupported");
  EXPECT_EQ(code_name(ErrorCode::kInterrupted), "interrupted");
}

TEST(Error, KeepsTextsOfAnyLengthShort) {
  const std::string name(20 << 20, 'n');
  const Error error = Error(ErrorCode::kCorruption, "tensor '" + name + "' is damaged").of_tensor(name).because(name);
  EXPECT_LE(std::string_view(error.what()).size(), kMaxMessageBytes);
  EXPECT_TRUE(std::string_view(error.what()).starts_with("tensor 'nnn"));
  EXPECT_TRUE(std::string_view(error.what()).ends_with("' is damaged"));
  EXPECT_LE(error.tensor().size(), kMaxMessageBytes);
  EXPECT_LE(error.why().size(), kMaxMessageBytes);
}

TEST(Error, ANulDoesNotCutTheMessage) {
  const Error error(ErrorCode::kUnsupported, std::string("cannot write 'a\0b'", 18));
  EXPECT_STREQ(error.what(), "cannot write 'a\\x00b'");
}

TEST(Error, WithADifferentMessageHasTheSameFields) {
  const Error error = Error(ErrorCode::kCorruption, "it is short")
                          .in_file("a.pt")
                          .of_rank(3)
                          .because("it ends early")
                          .of_kind(FindingKind::kTruncated)
                          .expected(8)
                          .found(4)
                          .suggest(Remedy::kCast, "w");
  const Error longer = error.with_message("object 'x': it is short");
  EXPECT_STREQ(longer.what(), "object 'x': it is short");
  EXPECT_EQ(longer.code(), ErrorCode::kCorruption);
  EXPECT_EQ(longer.file(), "a.pt");
  EXPECT_EQ(longer.rank(), 3);
  EXPECT_EQ(longer.why(), "it ends early");
  EXPECT_EQ(longer.kind(), FindingKind::kTruncated);
  EXPECT_EQ(longer.expected(), "8");
  EXPECT_EQ(longer.found(), "4");
  EXPECT_EQ(longer.suggestions(), error.suggestions());
  EXPECT_STREQ(error.what(), "it is short");
}

TEST(Clipped, SaysHowLongTheTextWasAndIsClippedOnce) {
  const std::string text = clipped(std::string(5000, 'x'));
  EXPECT_NE(text.find("... (5000 bytes) ..."), text.npos);
  EXPECT_EQ(clipped(text), text);
  EXPECT_EQ(clipped("short"), "short");
}

TEST(Clipped, CutsNoCharacter) {
  std::string accents;
  for (int i = 0; i < 1000; ++i) accents += "\xC3\xA9";
  for (const std::string& text : {clipped(accents, 256), clipped("x" + accents, 256)}) {
    const std::size_t begin = text.find("..."), end = text.rfind("...") + 3;
    EXPECT_EQ(text[begin - 1], '\xA9');
    EXPECT_EQ(text[end], '\xC3');
  }
}

TEST(FirstNames, SaysAFewAndHowManyMore) {
  FirstNames names;
  for (const char* name : {"a", "b", "c"}) names.add(name);
  EXPECT_EQ(names.text(), "'a', 'b', 'c'");
  names.add("d");
  names.add("e");
  EXPECT_EQ(names.text(), "'a', 'b', 'c' and 2 more");
  EXPECT_EQ(names.count(), 5U);
}

TEST(AsError, MissingMemoryAndThreadsAreResources) {
  EXPECT_EQ(as_error(std::make_exception_ptr(std::bad_alloc())).code(), ErrorCode::kResource);
  EXPECT_EQ(as_error(std::make_exception_ptr(std::length_error("vector"))).code(), ErrorCode::kResource);
  const std::system_error no_thread(std::make_error_code(std::errc::resource_unavailable_try_again));
  const Error limited = as_error(std::make_exception_ptr(no_thread));
  EXPECT_EQ(limited.code(), ErrorCode::kResource);
  EXPECT_TRUE(std::string(limited.what()).starts_with("cannot start a thread: ")) << limited.what();
  EXPECT_EQ(as_error(std::make_exception_ptr(std::runtime_error("x"))).code(), ErrorCode::kInternal);
}

TEST(Describe, HasEveryFact) {
  const Error error = Error(ErrorCode::kCorruption, "wrong dtype")
                          .in_file("run/a.pt")
                          .of_tensor("w")
                          .of_rank(3)
                          .expected("float32")
                          .found("int8")
                          .hint("convert it");
  EXPECT_EQ(describe(error),
            "rank 3: run/a.pt: tensor 'w': wrong dtype\n  why:  expected float32, found int8\n  hint: convert it");
  EXPECT_EQ(describe(Error(error).because("it is of a later save")),
            "rank 3: run/a.pt: tensor 'w': wrong dtype\n  why:  it is of a later save; expected float32, found int8\n"
            "  hint: convert it");
  EXPECT_EQ(lines_of(error, false).headline, "run/a.pt: tensor 'w': wrong dtype");
}

TEST(Describe, RepeatsNoFact) {
  const Error error = Error(ErrorCode::kCorruption, "rank 3 has tensor 'w' in a.pt as int8")
                          .in_file("a.pt")
                          .of_tensor("w")
                          .of_rank(3)
                          .found("int8");
  EXPECT_EQ(describe(error), "rank 3 has tensor 'w' in a.pt as int8");
  EXPECT_EQ(describe(Error(error).expected("float32").because("float32 is needed")),
            "rank 3 has tensor 'w' in a.pt as int8\n  why:  float32 is needed");
  EXPECT_EQ(describe(Error(ErrorCode::kPeer, "rank 31 is lost").of_rank(3)), "rank 3: rank 31 is lost");
}

TEST(Describe, OfAMessageAloneIsTheMessage) {
  EXPECT_EQ(describe(Error(ErrorCode::kResource, "disk full")), "disk full");
  EXPECT_EQ(describe(Error(ErrorCode::kResource, "short").expected(4)), "short\n  why:  expected 4");
}

}  // namespace
}  // namespace shard
