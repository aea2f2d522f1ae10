// Tests the parser with files that libhdf5 creates here: many objects, deep nesting, and small files that claim large
// sizes.
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <hdf5.h>
#include <sys/resource.h>

#include <functional>
#include <utility>

#include "libshard/core/error.h"
#include "tests/hdf5/entry_text.h"
#include "tests/hdf5/parsed_file.h"
#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace shard::hdf5 {
namespace {

/// The bytes of a file that `fill` makes.
std::string made(const std::function<void(hid_t file)>& fill) {
  const test::TempFolder folder;
  const std::string path = folder / "made.h5";
  const hid_t file = H5Fcreate(path.c_str(), H5F_ACC_TRUNC, H5P_DEFAULT, H5P_DEFAULT);
  fill(file);
  H5Fclose(file);
  return folder.read("made.h5");
}

hid_t make_dataset(hid_t at, const std::string& name, hid_t type, std::vector<hsize_t> shape,
                   hid_t properties = H5P_DEFAULT) {
  const hid_t space = H5Screate_simple(static_cast<int>(shape.size()), shape.data(), nullptr);
  const hid_t dataset = H5Dcreate2(at, name.c_str(), type, space, H5P_DEFAULT, properties, H5P_DEFAULT);
  H5Sclose(space);
  return dataset;
}

std::string many_datasets(int count) {
  return made([&](hid_t file) {
    for (int i = 0; i < count; ++i) H5Dclose(make_dataset(file, fmt::format("{:06}", i), H5T_IEEE_F32LE, {4}));
  });
}

double child_seconds() {
  rusage usage{};
  getrusage(RUSAGE_CHILDREN, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double seconds_to_parse(const std::string& content, int expected) {
  const double begin = child_seconds();
  int datasets = 0;
  std::string last;
  parse_bytes(content, [&](const Entry& entry) {
    if (entry.kind == EntryKind::kGroup) return;
    EXPECT_LT(last, entry.links[0]);
    last = entry.links[0];
    ++datasets;
  });
  EXPECT_EQ(datasets, expected);
  return child_seconds() - begin;
}

/// A virtual dataset with every second element of its source.
std::string strided(hsize_t blocks) {
  return made([&](hid_t file) {
    const hid_t properties = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t elements = 2 * blocks, begin = 0, step = 2;
    const hid_t space = H5Screate_simple(1, &elements, nullptr), source = H5Screate_simple(1, &blocks, nullptr);
    H5Sselect_hyperslab(space, H5S_SELECT_SET, &begin, &step, &blocks, nullptr);
    H5Pset_virtual(properties, space, "source.h5", "d", source);
    H5Dclose(make_dataset(file, "strided", H5T_IEEE_F32LE, {elements}, properties));
    H5Sclose(space), H5Sclose(source), H5Pclose(properties);
  });
}

TEST(Hdf5ParserMade, StridedSelectionsOfTooManyBlocksAreNotSupported) {
  EXPECT_NE(parsed_text(strided(1 << 9)).find("virtual"), std::string::npos);
  const std::string many = strided(1 << 17);
  const double begin = child_seconds();
  const Error error = test::error_of([&] { parse_bytes(many, [](const Entry&) {}); });
  EXPECT_EQ(error.code(), ErrorCode::kUnsupported);
  EXPECT_NE(std::string(error.what()).find("'strided': opening it takes more processor time"), std::string::npos)
      << error.what();
  EXPECT_LT(child_seconds() - begin, 4.5);
}

TEST(Hdf5ParserMade, AllFilesOfASourceShareTheirTime) {
  using std::chrono::milliseconds;
  ParserTime time;
  EXPECT_EQ(time.seconds_left(), 2);
  time.spend(milliseconds(1600));
  EXPECT_EQ(time.seconds_left(), 1);
  time.spend(milliseconds(400));
  EXPECT_EQ(time.seconds_left(), 0);
  time.earn(16 << 20);
  EXPECT_EQ(time.seconds_left(), 8);
  time.spend(milliseconds(10'000));
  const std::string small = strided(4);
  test::expect_error(ErrorCode::kCorruption, "take too much time", [&] {
    parse_bytes(
        small, [](const Entry&) {}, time);
  });
}

TEST(Hdf5ParserMade, TimeIsLinearInTheNumberOfDatasets) {
  const double small = seconds_to_parse(many_datasets(4000), 4000);
  const double large = seconds_to_parse(many_datasets(32000), 32000);
  EXPECT_LT(large, 8 * small * 3 + 0.5) << small;
}

TEST(Hdf5ParserMade, DatasetsThatLieInAnotherOrderThanTheirNamesAreRead) {
  constexpr int kCount = 60'000;  // 16 MiB of headers.
  const std::string content = made([](hid_t file) {
    for (int i = 0; i < kCount; ++i) {
      const int number = static_cast<int>(i * std::int64_t{7919} % kCount);  // Each once: 7919 is a prime.
      H5Dclose(make_dataset(file, fmt::format("{:06}", number), H5T_IEEE_F32LE, {4}));
    }
  });
  int datasets = 0;
  parse_bytes(content, [&](const Entry& entry) { datasets += entry.kind != EntryKind::kGroup; });
  EXPECT_EQ(datasets, kCount);
}

TEST(Hdf5ParserMade, ChunksThatWereWrittenAreListedHoweverLargeTheGrid) {
  const std::string content = made([](hid_t file) {
    const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk = 1, at = hsize_t{1} << 40;
    H5Pset_chunk(chunked, 1, &chunk);
    H5Dclose(make_dataset(file, "none", H5T_IEEE_F32LE, {hsize_t{1} << 60}, chunked));
    const hid_t one = make_dataset(file, "one", H5T_IEEE_F32LE, {hsize_t{1} << 60}, chunked);
    const float value = 1;
    H5Dwrite_chunk(one, H5P_DEFAULT, 0, &at, sizeof value, &value);
    H5Dclose(one);
    H5Pclose(chunked);
  });
  std::vector<std::size_t> counts;
  parse_bytes(content, [&](const Entry& entry) {
    if (entry.kind == EntryKind::kDataset) counts.push_back(entry.chunks.size());
    if (!entry.chunks.empty()) {
      EXPECT_EQ(entry.chunks[0].number, std::int64_t{1} << 40);
    }
  });
  EXPECT_EQ(counts, (std::vector<std::size_t>{0, 1}));
}

TEST(Hdf5ParserMade, ChunksOverTheEdgeMayLieThereWithoutFilters) {
  const std::string content = made([](hid_t file) {
    const hid_t chunked = H5Pcreate(H5P_DATASET_CREATE);
    const hsize_t chunk = 4;
    H5Pset_chunk(chunked, 1, &chunk);
    H5Pset_chunk_opts(chunked, H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS);
    H5Pset_deflate(chunked, 6);
    const hid_t dataset = make_dataset(file, "x", H5T_STD_U8LE, {10}, chunked);
    const std::vector<unsigned char> values(10);
    H5Dwrite(dataset, H5T_NATIVE_UCHAR, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data());
    H5Dclose(dataset);
    H5Pclose(chunked);
  });
  std::vector<ChunkPlace> chunks;
  parse_bytes(content, [&](const Entry& entry) { chunks = entry.chunks; });
  ASSERT_EQ(chunks.size(), 3U);
  EXPECT_EQ(chunks[0].skipped, 0U);
  EXPECT_EQ(chunks[1].skipped, 0U);
  EXPECT_EQ(chunks[2].skipped, ~0U);
  EXPECT_EQ(chunks[2].bytes, 4U);
}

std::string nested_groups(int depth) {
  return made([&](hid_t file) {
    hid_t at = H5Gopen2(file, "/", H5P_DEFAULT);
    for (int i = 0; i < depth; ++i) {
      const hid_t inner = H5Gcreate2(at, "g", H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT);
      H5Gclose(std::exchange(at, inner));
    }
    H5Gclose(at);
  });
}

TEST(Hdf5ParserMade, GroupsLieNoDeeperThanALimit) {
  int groups = 0;
  parse_bytes(nested_groups(1000), [&](const Entry&) { ++groups; });
  EXPECT_EQ(groups, 1001);
  test::expect_error(ErrorCode::kUnsupported, "1024 deep",
                     [] { parse_bytes(nested_groups(1024), [](const Entry&) {}); });
}

TEST(Hdf5ParserMade, GroupsUnderManyNamesArePaidForEach) {
  const std::string content = made([](hid_t file) {
    for (int i = 0; i < 40; ++i) {
      H5Gclose(H5Gcreate2(file, fmt::format("g{}", i).c_str(), H5P_DEFAULT, H5P_DEFAULT, H5P_DEFAULT));
    }
    for (int i = 0; i < 39; ++i) {
      for (const char* name : {"a", "b"}) {
        H5Lcreate_hard(file, fmt::format("g{}", i + 1).c_str(), file, fmt::format("g{}/{}", i, name).c_str(),
                       H5P_DEFAULT, H5P_DEFAULT);
      }
    }
  });
  test::expect_error(ErrorCode::kCorruption, "are far too many for",
                     [&] { parse_bytes(content, [](const Entry&) {}); });
}

TEST(Hdf5ParserMade, StringsTakeNoMoreThanAFileOfItsSizeHolds) {
  const std::string content = made([](hid_t file) {
    const hid_t text = H5Tcopy(H5T_C_S1);
    H5Tset_size(text, H5T_VARIABLE);
    H5Dclose(make_dataset(file, "x", text, {hsize_t{1} << 40}));
    H5Tclose(text);
  });
  test::expect_error(ErrorCode::kCorruption, "do not fit in a file of this size",
                     [&] { parse_bytes(content, [](const Entry&) {}); });
}

/// A file with a link of a kind that the program that made it defined.
std::string with_link(int kind) {
  return made([&](hid_t file) {
    H5L_class_t link{};
    link.version = H5L_LINK_CLASS_T_VERS;
    link.id = static_cast<H5L_type_t>(kind);
    link.trav_func = [](const char*, hid_t, const void*, size_t, hid_t, hid_t) -> hid_t { return -1; };
    H5Lregister(&link);
    H5Lcreate_ud(file, "u", link.id, nullptr, 0, H5P_DEFAULT, H5P_DEFAULT);
  });
}

TEST(Hdf5ParserMade, UserDefinedLinksAreNamed) {
  std::string found;
  parse_bytes(with_link(200), [&](const Entry& entry) { found = to_text(entry); });
  EXPECT_EQ(found, "unread 'u' a user-defined link is not supported");
}

TEST(Hdf5ParserMade, AFaultOfTheLibraryIsAnErrorHere) {
  // libhdf5 1.10.8 reads the target of an external link without checking whether it exists.
  test::expect_error(ErrorCode::kCorruption, "",
                     [] { parse_bytes(with_link(H5L_TYPE_EXTERNAL), [](const Entry&) {}); });
}

}  // namespace
}  // namespace shard::hdf5
