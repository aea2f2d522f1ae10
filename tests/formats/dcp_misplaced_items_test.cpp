// Files with items other than those in .metadata, and files that are only damaged.
#include <gtest/gtest.h>

#include "formats/dcp/check_items.h"
#include "tests/formats/torch_files.h"

namespace shard::dcp {
namespace {

/// Zips of these numbers of elements, one after another, and their offsets.
struct ItemFile {
  std::string bytes;
  std::vector<Item> items;

  explicit ItemFile(const std::vector<std::size_t>& sizes) {
    for (const std::size_t size : sizes) {
      const std::string zip = testing::pack({{"data.pkl", "pickle"}, {"data/0", std::string(size, 'x')}});
      Item item;
      item.offset = std::ssize(bytes);
      item.length = std::ssize(zip);
      items.push_back(item);
      bytes += zip;
    }
  }
  /// Whether `file` contains items other than this one.
  bool is_other(const std::string& file) const {
    Arena arena(std::make_shared<Budget>());
    return misplaced_items(std::make_shared<testing::BytesFile>(file), items, arena).has_value();
  }
};

TEST(MisplacedItems, OfAFileOfItsOwnThereAreNone) {
  const ItemFile file({10, 500, 20});
  EXPECT_FALSE(file.is_other(file.bytes));
}

TEST(MisplacedItems, AreThoseOfOtherLengths) {
  const ItemFile file({10, 500, 20});
  for (const std::vector<std::size_t>& sizes : {std::vector<std::size_t>{10, 700, 20}, {500, 10, 20}, {10, 20, 500}}) {
    EXPECT_TRUE(file.is_other(ItemFile(sizes).bytes));
  }
}

TEST(MisplacedItems, AreWholeOnesInTheRoomOfLongerOnes) {
  ItemFile file({10, 500});
  const ItemFile other({10, 20});
  file.items[1].length = other.items[1].length;  // The files, as repair sees them.
  EXPECT_FALSE(file.is_other(other.bytes));
  file.items[1].is_cut = true;
  EXPECT_TRUE(file.is_other(other.bytes));
}

TEST(MisplacedItems, AreThoseThatAreMoreOrFewer) {
  const ItemFile file({10, 500, 20});
  EXPECT_TRUE(file.is_other(ItemFile({10, 500}).bytes));
  EXPECT_TRUE(file.is_other(ItemFile({10, 500, 20, 30}).bytes));
}

TEST(MisplacedItems, DamageMakesNone) {
  const ItemFile file({10, 500, 20});
  const std::size_t middle = static_cast<std::size_t>(file.items[1].offset) + 100;
  EXPECT_FALSE(file.is_other(file.bytes.substr(0, file.bytes.size() - 9)));     // Cut.
  EXPECT_FALSE(file.is_other(file.bytes + "more"));                             // Longer.
  EXPECT_FALSE(file.is_other(std::string(file.bytes).erase(middle, 7)));        // Moved.
  EXPECT_FALSE(file.is_other(std::string(file.bytes).insert(middle, "more")));  // Moved.
  for (std::size_t at = 0; at < file.bytes.size(); at += 3) {
    std::string changed = file.bytes;
    changed[at] = static_cast<char>(changed[at] ^ 0x55);
    EXPECT_FALSE(file.is_other(changed)) << at;
  }
}

}  // namespace
}  // namespace shard::dcp
