#include "formats/hdf5/library/image.h"

#include <gtest/gtest.h>

#include <array>

namespace shard::hdf5 {
namespace {

constexpr std::int64_t kTerabyte = std::int64_t{1} << 40;

/// One dataset of bytes at `offset`.
DatasetHandle make_dataset(Image& image, const char* name, std::int64_t offset, hsize_t bytes) {
  const PropertiesHandle properties(H5Pcreate(H5P_DATASET_CREATE));
  H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY);
  H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER);
  H5Pset_obj_track_times(properties.get(), false);
  const SpaceHandle space(H5Screate_simple(1, &bytes, nullptr));
  image.place_next(offset);
  return DatasetHandle(
      H5Dcreate2(image.file(), name, H5T_STD_U8LE, space.get(), H5P_DEFAULT, properties.get(), H5P_DEFAULT));
}

struct Extent {
  std::int64_t begin, end;
  std::vector<std::byte> bytes;
  friend bool operator==(const Extent&, const Extent&) = default;
};
std::vector<Extent> extents_of(const Image& image) {
  std::vector<Extent> extents;
  image.visit([&](std::int64_t offset, std::span<const std::byte> bytes) {
    extents.push_back({offset, offset + std::ssize(bytes), {bytes.begin(), bytes.end()}});
  });
  return extents;
}

TEST(Image, HoldsMetadataAloneHoweverLargeTheFile) {
  const std::unique_lock lock = library_lock();
  Image image(kTerabyte);
  EXPECT_EQ(H5Dget_offset(make_dataset(image, "large", 4096, kTerabyte - 4096).get()), 4096U);
  image.close();
  EXPECT_GT(image.bytes(), kTerabyte);
  EXPECT_LT(image.bytes(), kTerabyte + 4096);
  for (const Extent& extent : extents_of(image)) {
    EXPECT_TRUE(extent.end <= kSuperblockBytes || extent.begin >= kTerabyte) << extent.begin;
  }
}

TEST(Image, RefusesElements) {
  const std::unique_lock lock = library_lock();
  Image image(8192);
  {
    const DatasetHandle dataset = make_dataset(image, "d", 4096, 8);
    const std::array<char, 8> elements{};
    EXPECT_LT(H5Dwrite(dataset.get(), H5T_STD_U8LE, H5S_ALL, H5S_ALL, H5P_DEFAULT, elements.data()), 0);
  }
  H5Eclear2(H5E_DEFAULT);
  image.close();
}

TEST(Image, IsTheSameEveryTime) {
  const std::unique_lock lock = library_lock();
  const auto make = [] {
    Image image(1 << 20);
    for (int i = 0; i < 3000; ++i) make_dataset(image, std::to_string(i).c_str(), 64 * (i + 1), 64);
    image.close();
    return extents_of(image);
  };
  const std::vector<Extent> first = make();
  EXPECT_EQ(make(), first);
  EXPECT_GT(first.size(), 2U);  // Several blocks.
}

TEST(Image, IsDroppedUnfinished) {
  const std::unique_lock lock = library_lock();
  Image image(4096);
  make_dataset(image, "d", 64, 8);
}

}  // namespace
}  // namespace shard::hdf5
