// Every byte of small files, changed: the parser answers, in bounded time and memory, or ends with an Error.
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <sstream>

#include "libshard/core/error.h"
#include "tests/hdf5/parsed_file.h"
#include "tests/support/expect_error.h"

namespace shard::hdf5 {
namespace {

std::string golden(const std::string& name) {
  std::stringstream text;
  text << std::ifstream(SHARD_TEST_DATA "/hdf5/h5py37-" + name + ".h5", std::ios::binary).rdbuf();
  return text.str();
}

/// The distance between changed bytes; SHARD_DAMAGE_STEP=1 changes all, which takes minutes.
std::size_t step() {
  const char* const given = std::getenv("SHARD_DAMAGE_STEP");
  return given == nullptr ? 151 : static_cast<std::size_t>(std::atoi(given));
}

struct Outcomes {
  int accepted = 0, refused = 0;
};

void parse_damaged(const std::string& content, std::size_t at, Outcomes& outcomes) {
  try {
    parse_bytes(content, [](const Entry&) {});
    ++outcomes.accepted;
  } catch (const Error& error) {
    EXPECT_TRUE(error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kUnsupported)
        << at << ": " << error.what();
    ++outcomes.refused;
  }
}

/// Bytes of runs of zeros are unused, as a rule, so only their first are changed.
bool is_within_zeros(const std::string& content, std::size_t at) {
  return at >= 24 && content.find_first_not_of('\0', at - 24) > at;
}

class Hdf5Damage : public ::testing::TestWithParam<const char*> {};

TEST_P(Hdf5Damage, OfAByteIsAnErrorOrHarmless) {
  const std::string content = golden(GetParam());
  Outcomes outcomes;
  for (std::size_t at = 0; at < content.size(); at += step()) {
    if (is_within_zeros(content, at)) continue;
    for (const int change : {0xFF, 0x01}) {
      std::string damaged = content;
      damaged[at] = static_cast<char>(damaged[at] ^ change);
      parse_damaged(damaged, at, outcomes);
    }
  }
  RecordProperty("accepted", outcomes.accepted);
  RecordProperty("refused", outcomes.refused);
  EXPECT_GT(outcomes.refused, 0);
}

TEST_P(Hdf5Damage, OfItsEndIsAnError) {
  const std::string content = golden(GetParam());
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{96}, content.size() / 2, content.size() - 1}) {
    const Error error = test::error_of([&] { parse_bytes(content.substr(0, bytes), [](const Entry&) {}); });
    EXPECT_EQ(error.code(), ErrorCode::kCorruption) << bytes << ": " << error.what();
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, Hdf5Damage,
                         ::testing::Values("links", "filters", "newest-filters", "virtual", "texts"));

}  // namespace
}  // namespace shard::hdf5
