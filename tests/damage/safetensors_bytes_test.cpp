// A safetensors header with every key of every wrong JSON type, every byte changed, and the file cut at every byte.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "formats/safetensors/format.h"
#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/memory_disk.h"
#include "tests/support/safetensors_file.h"

namespace shard {
namespace {

using test::safetensors_file;
using ::testing::HasSubstr;

const std::string kData = "12345678";
const std::string kHeader = R"({"__metadata__":{"format":"pt"},"a":{"dtype":"F16","shape":[1,2],"data_offsets":[0,4]},)"
                            R"("b":{"dtype":"U8","shape":[4],"data_offsets":[4,8]}})";

struct Outcome {
  ErrorCode code = ErrorCode::kInterrupted;  ///< Passes if the file was read.
  std::string message;
  std::optional<FindingKind> kind;
  std::string file;
};

Outcome outcome_of(const std::string& content) {
  const auto state = std::make_shared<MemoryState>();
  state->put("/f.safetensors", test::as_span(content));
  const std::unique_ptr<LocalDisk> fs = make_memory_disk(state);
  try {
    const std::unique_ptr<Reader> reader = kSafetensorsFormat.open({fs.get(), {"/f.safetensors"}}, {});
    for (const Storage& storage : reader->catalog().storages) {
      EXPECT_LE(storage.offset + storage.bytes, static_cast<std::int64_t>(content.size()));
    }
    return {};
  } catch (const Error& error) {
    return {error.code(), error.what(), error.kind(), error.file()};
  }
}

std::string replaced(std::string text, const std::string& from, const std::string& to) {
  return text.replace(text.find(from), from.size(), to);
}

struct Place {
  const char* what;
  std::string from, to;  ///< `@` in `to` is the wrong value.
  const char* words;
  std::string allowed;  ///< Values that are right there, each followed by a space.
};

const Place kPlaces[] = {
    {"a tensor", R"({"dtype":"U8","shape":[4],"data_offsets":[4,8]})", "@", "expected '{'", "{} "},
    {"dtype", R"("U8")", "@", "expected '\"'", "\"x\" "},
    {"shape", "[4],", "@,", "expected '['", "[] "},
    {"a size", "[4],", "[@],", "", ""},
    {"data_offsets", "[4,8]", "@", "expected '['", "[] "},
    {"an offset", "[4,8]", "[4,@]", "", ""},
    {"__metadata__", R"({"format":"pt"})", "@", "expected '{'", "{} null "},
    {"a value of __metadata__", R"("pt")", "@", "expected '\"'", "\"x\" "},
};
const char* const kWrongValues[] = {"null", "true", "false", "-1", "1.5", "1e3", "\"x\"",
                                    "[]",   "{}",   "01",    "+1", "0x1", "NaN"};

TEST(SafetensorsBytes, EveryKeyOfEveryWrongTypeIsRefused) {
  for (const Place& place : kPlaces) {
    for (const std::string value : kWrongValues) {
      if (place.allowed.find(value + " ") != std::string::npos) continue;
      const std::string header = replaced(kHeader, place.from, replaced(place.to, "@", value));
      const Outcome outcome = outcome_of(safetensors_file(header, kData));
      EXPECT_EQ(code_name(outcome.code), "corruption") << place.what << " = " << value << ": " << outcome.message;
      EXPECT_EQ(outcome.kind, FindingKind::kBadHeader) << place.what << " = " << value << ": " << outcome.message;
      EXPECT_EQ(outcome.file, "f.safetensors");
      EXPECT_THAT(outcome.message, HasSubstr(place.words)) << place.what << " = " << value;
    }
  }
}

struct Numbers {
  const char* from;
  const char* to;
  std::optional<FindingKind> kind;
  const char* words;
};

TEST(SafetensorsBytes, NumbersThatContradictAreRefusedWithBoth) {
  const Numbers table[] = {
      {"[4,8]", "[5,8]", FindingKind::kShapeMismatch, "shape [4] of uint8 takes 4 bytes, data_offsets [5, 8] have 3"},
      {"[4,8]", "[4,7]", FindingKind::kShapeMismatch, "shape [4] of uint8 takes 4 bytes, data_offsets [4, 7] have 3"},
      {"[4,8]", "[8,4]", FindingKind::kBadHeader, "data_offsets [8, 4] run backwards"},
      {"[4,8]", "[5,9]", FindingKind::kGap, "bytes [4, 5) of the data belong to no tensor"},
      {"[4,8]", "[3,7]", FindingKind::kOverlap, "two tensors contain byte 3 of the data"},
      {"[4,8]", "[0,4]", FindingKind::kOverlap, "two tensors contain byte 0 of the data"},
      {"[4,8]", "[9223372036854775803,9223372036854775807]", std::nullopt, "cannot add 183 and 9223372036854775803"},
      {"[4],", "[5],", FindingKind::kShapeMismatch, "shape [5] of uint8 takes 5 bytes, data_offsets [4, 8] have 4"},
      {"[4],", "[0],", FindingKind::kShapeMismatch, "shape [0] of uint8 takes 0 bytes, data_offsets [4, 8] have 4"},
      {"[4],", "[9223372036854775807],", FindingKind::kShapeMismatch, "takes 9223372036854775807 bytes"},
      {"[4],", "[9223372036854775807,2],", std::nullopt, "shape [9223372036854775807, 2]"},
      {"[4],", "[0,4294967296,4294967296],", FindingKind::kShapeMismatch, "takes 0 bytes, data_offsets [4, 8] have 4"},
      {"U8", "F32", FindingKind::kShapeMismatch, "shape [4] of float32 takes 16 bytes, data_offsets [4, 8] have 4"},
      {"U8", "F8", FindingKind::kBadHeader, "the dtype 'F8' is not one of safetensors"},
      {"U8", "", FindingKind::kBadHeader, "the dtype '' is not one of safetensors"},
      {"\"b\"", "\"a\"", FindingKind::kDuplicateName, "tensor 'a' appears twice"},
      {"\"format\":\"pt\"", "\"k\":\"1\",\"k\":\"2\"", FindingKind::kDuplicateName,
       "__metadata__ contains the key 'k' twice"},
  };
  for (const Numbers& row : table) {
    const Outcome outcome = outcome_of(safetensors_file(replaced(kHeader, row.from, row.to), kData));
    EXPECT_EQ(code_name(outcome.code), "corruption") << row.to << ": " << outcome.message;
    EXPECT_EQ(outcome.kind, row.kind) << row.to << ": " << outcome.message;
    EXPECT_THAT(outcome.message, HasSubstr(row.words)) << row.to;
  }
}

TEST(SafetensorsBytes, EveryOtherLengthInFrontIsRefused) {
  const std::string body = kHeader + kData;
  for (std::uint64_t length = 0; length < body.size() + 3; ++length) {
    if (length == kHeader.size()) continue;
    const Outcome outcome = outcome_of(test::length_bytes(length) + body);
    EXPECT_EQ(code_name(outcome.code), "corruption") << length << ": " << outcome.message;
  }
  for (int bit = 0; bit < 64; ++bit) {
    const Outcome outcome = outcome_of(test::length_bytes(kHeader.size() ^ (std::uint64_t{1} << bit)) + body);
    EXPECT_EQ(code_name(outcome.code), "corruption") << "bit " << bit << ": " << outcome.message;
  }
}

TEST(SafetensorsBytes, CutAnywhereItIsRefused) {
  const std::string good = safetensors_file(kHeader, kData);
  for (std::size_t size = 0; size < good.size(); ++size) {
    const Outcome outcome = outcome_of(good.substr(0, size));
    EXPECT_EQ(code_name(outcome.code), "corruption") << size << ": " << outcome.message;
    EXPECT_EQ(outcome.kind, FindingKind::kTruncated) << size << ": " << outcome.message;
  }
}

TEST(SafetensorsBytes, ChangingAnyByteIsRefusedOrStaysInsideTheFile) {
  const std::string good = safetensors_file(kHeader, kData);
  int refused = 0;
  for (std::size_t at = 0; at < good.size() - kData.size(); ++at) {
    for (int byte = 0; byte < 256; ++byte) {
      std::string bad = good;
      bad[at] = static_cast<char>(byte);
      const Outcome outcome = outcome_of(bad);
      if (outcome.code == ErrorCode::kInterrupted) continue;
      ++refused;
      const bool right = outcome.code == ErrorCode::kCorruption || outcome.code == ErrorCode::kUnsupported;
      EXPECT_TRUE(right) << "byte " << at << " = " << byte << ": " << outcome.message;
    }
  }
  EXPECT_GT(refused, 30'000);
}

}  // namespace
}  // namespace shard
