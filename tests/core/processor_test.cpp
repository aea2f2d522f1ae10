#include "libshard/core/processor.h"

#include <gtest/gtest.h>

namespace shard {
namespace {

TEST(Processor, HasWhatTheCompilersOwnLibraryFinds) {
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
  EXPECT_EQ(has_avx(), __builtin_cpu_supports("avx") != 0);
  EXPECT_EQ(has_avx2(), __builtin_cpu_supports("avx2") != 0);
  EXPECT_EQ(has_avx512_bfloat16(), __builtin_cpu_supports("avx512bf16") != 0);
  EXPECT_EQ(has_fma(), __builtin_cpu_supports("avx2") != 0 && __builtin_cpu_supports("fma") != 0);
#else
  EXPECT_TRUE(has_avx() || !has_avx2());
#endif
}

}  // namespace
}  // namespace shard
