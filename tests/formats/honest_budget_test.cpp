// The budgets that honest checkpoints use: libshard/core/budget.h has the worst case.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <numeric>
#include <optional>

#include "formats/detect.h"
#include "libshard/core/budget.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/torch_files.h"

namespace shard {
namespace {

namespace fs = std::filesystem;

/// The largest part of a limit that was spent.
struct Worst {
  double share = 0;
  std::string name;
  int count = 0;
};

std::optional<Budget> budget_of(const fs::path& path) {
  try {
    const Source source{&posix_disk(), {path.string()}};
    const std::unique_ptr<Reader> reader = detect_format(source).open(source, {});
    std::vector<std::uint32_t> all(reader->catalog().tensors.size());
    std::iota(all.begin(), all.end(), 0U);
    reader->locate(all);
    reader->load_objects();
    return *reader->catalog().arena->budget();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()).find("far too many"), std::string::npos) << path << ": " << error.what();
    return std::nullopt;
  }
}

void add(Worst& worst, const fs::path& path) {
  const std::optional<Budget> budget = budget_of(path);
  if (!budget) return;
  ++worst.count;
  const double share = static_cast<double>(budget->spent()) / static_cast<double>(budget->limit());
  if (share > worst.share) worst.share = share, worst.name = path.filename();
}

TEST(HonestBudget, GoldenCheckpointsStayFarFromTheirLimits) {
  Worst worst;
  for (const auto& entry : fs::recursive_directory_iterator(SHARD_TEST_DATA "/golden")) add(worst, entry.path());
  fmt::print("{} checkpoints spend at most {:.2f} % of what they may ({})\n", worst.count, 100 * worst.share,
             worst.name);
  EXPECT_GT(worst.count, 50);
  EXPECT_LT(worst.share, 0.1);
}

/// The cost of each byte of a torch file whose pickle is `depth` dicts around a list of these items.
double cost_of_list(int depth, const std::string& items) {
  std::string pickle = "\x80\x02";
  for (int i = 0; i < depth; ++i) pickle += std::string("}X\6\0\0\0", 6) + "level" + static_cast<char>('0' + i);
  pickle += "](" + items + "e" + std::string(static_cast<std::size_t>(depth), 's') + ".";
  testing::MemoryFiles files;
  files.put("/made.pt", testing::pack({{"data.pkl", pickle}, {"version", "3\n"}}));
  const auto reader = files.open("/made.pt");
  const Budget& budget = *reader->catalog().arena->budget();
  return static_cast<double>(budget.spent()) / static_cast<double>(budget.read());
}

TEST(HonestBudget, ALongListDeepInATreeFits) {
  std::string integers;
  for (int i = 0; i < 500'000; ++i) integers += {'K', static_cast<char>(i % 100)};
  for (const int depth : {0, 2, 4, 6}) {
    const double cost = cost_of_list(depth, integers);
    fmt::print("a list of small integers {} dicts deep: {:.0f} units for each byte\n", depth, cost);
    EXPECT_LT(cost, static_cast<double>(kBudgetPerByte));
  }
}

/// They take a byte each, more than the file's own bytes and the floor allow.
TEST(HonestBudget, AListOfAMillionBoolsFits) {
  EXPECT_LT(cost_of_list(0, std::string(1'000'000, '\x88')), kBudgetPerByte + kBudgetPerDataByte + kBudgetFloor / 1e6);
}

}  // namespace
}  // namespace shard
