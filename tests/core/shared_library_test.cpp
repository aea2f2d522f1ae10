#include "libshard/core/shared_library.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>

namespace shard {
namespace {

const char kHere = 0;

TEST(FolderOfCode, OfTheProgramIsWhereItsFileIs) {
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  EXPECT_EQ(folder_of_code(&kHere), program.parent_path());
}

TEST(FolderOfCode, OfTheProgramDoesNotFollowWhatItIsCalledBy) {
  const std::string program = std::filesystem::read_symlink("/proc/self/exe");
  const std::string line = "cd / && exec -a in_the_working_folder '" + program +
                           "' --gtest_filter=FolderOfCode.OfTheProgramIsWhereItsFileIs >/dev/null";
  EXPECT_EQ(std::system(("bash -c \"" + line + "\"").c_str()), 0);
}

TEST(FolderOfCode, OfALibraryIsWhereThatIs) {
  const std::string folder = folder_of_code(reinterpret_cast<const void*>(&std::puts));
  EXPECT_TRUE(std::filesystem::exists(folder + "/libc.so.6")) << folder;
}

}  // namespace
}  // namespace shard
