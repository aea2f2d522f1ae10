// A torch.save file with every byte changed that is not an element, and with each record gone, doubled or renamed.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/formats/torch_files.h"

namespace shard {
namespace {

using ::testing::HasSubstr;
using namespace shard::testing;

/// Names, dtypes, shapes and elements' bytes: the content of a file for a reader.
std::string described(const std::string& content) {
  MemoryFiles files;
  files.put("/state.pt", content);
  const std::unique_ptr<Reader> reader = files.open("/state.pt");
  const Catalog& catalog = located(*reader);
  std::string all;
  for (const Tensor& tensor : catalog.tensors) {
    all.append(tensor.name).append(" ").append(dtype_name(tensor.dtype));
    for (const std::int64_t n : tensor.shape) all += " " + std::to_string(n);
    const StoredTensor& stored = catalog.stored[catalog.chunks_of(tensor)[0].stored];
    const Storage& storage = catalog.storages[stored.storage];
    std::string bytes(static_cast<std::size_t>(storage.bytes), '\0');
    reader->bytes_of(stored.storage)->read_at(storage.offset, std::as_writable_bytes(std::span(bytes)));
    all += " " + std::to_string(stored.first) + " " + bytes + "\n";
  }
  for (const Object& object : catalog.objects) all.append(object.name).append(" ").append(type_name(*object.value));
  return all;
}

/// Marks the bytes of the file that are elements, because no check of a reader covers these.
std::vector<bool> elements_of(const std::string& content) {
  const zip::ZipReader zip(std::make_shared<BytesFile>(content), 0, static_cast<std::int64_t>(content.size()));
  std::vector<bool> elements(content.size(), false);
  for (const zip::Record& record : zip.records()) {
    if (record.name.find("/data/") == std::string::npos) continue;
    const auto begin = elements.begin() + zip.data_offset(record);
    std::fill(begin, begin + record.bytes, true);
  }
  return elements;
}

TEST(TorchBytes, ChangingAnyByteIsRefusedOrChangesNothing) {
  const std::string good = golden("torch/state.pt");
  const std::string expected = described(good);
  const std::vector<bool> elements = elements_of(good);
  int refused = 0, harmless = 0;
  for (std::size_t at = 0; at < good.size(); ++at) {
    for (const char change : {'\x01', '\x80', '\xff'}) {
      if (elements[at]) continue;
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ change);
      try {
        EXPECT_EQ(described(bad), expected) << "byte " << at;
        ++harmless;
      } catch (const Error& error) {
        const bool right = error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kUnsupported;
        EXPECT_TRUE(right) << "byte " << at << ": " << error.what();
        ++refused;
      }
    }
  }
  EXPECT_GT(refused, 2000);   // Pickle, directory, names, end records.
  EXPECT_GT(harmless, 1000);  // Times, attributes, padding, descriptors, records that nothing reads.
}

TEST(TorchBytes, CutAnywhereItIsDamaged) {
  const std::string good = golden("torch/state.pt");
  for (std::size_t size = 0; size < good.size(); ++size) {
    try {
      described(good.substr(0, size));
      ADD_FAILURE() << "read from " << size << " bytes";
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kCorruption) << size << ": " << error.what();
      EXPECT_TRUE(error.kind()) << size << ": " << error.what();
    }
  }
}

/// "" if the file reads as before.
std::string words_of(const std::vector<NamedRecord>& records) {
  try {
    return described(pack(records)) == described(golden("torch/state.pt")) ? "" : "something else";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kCorruption) << error.what();
    return error.what();
  }
}

TEST(TorchBytes, RecordsThatAreGoneAreMissedOrNotNeeded) {
  const std::map<std::string, const char*> words{{"data.pkl", "the zip has no record data.pkl"},
                                                 {"data/0", "the storage's record data/0 is missing"},
                                                 {"data/1", "the storage's record data/1 is missing"}};
  const std::vector<NamedRecord> good = unpack(golden("torch/state.pt"));
  for (std::size_t i = 0; i < good.size(); ++i) {
    std::vector<NamedRecord> records = good;
    records.erase(records.begin() + static_cast<std::ptrdiff_t>(i));
    const bool is_needed = good[i].name == "data.pkl" || good[i].name.starts_with("data/");
    const auto found = words.find(good[i].name);
    const std::string expected = found != words.end() ? found->second : is_needed ? "is missing" : "";
    const std::string said = words_of(records);
    EXPECT_THAT(said, HasSubstr(expected)) << good[i].name;
    EXPECT_EQ(said.empty(), expected.empty()) << good[i].name << ": " << said;
  }
}

TEST(TorchBytes, RecordsThatAreRenamedAreMissed) {
  std::vector<NamedRecord> records = unpack(golden("torch/state.pt"));
  for (NamedRecord& record : records) {
    if (record.name == "data/1") record.name = "data/01";
  }
  EXPECT_THAT(words_of(records), HasSubstr("the storage's record data/1 is missing"));
}

TEST(TorchBytes, RecordsThatAreThereTwiceAreRefusedByName) {
  const std::vector<NamedRecord> good = unpack(golden("torch/state.pt"));
  for (const NamedRecord& record : good) {
    std::vector<NamedRecord> records = good;
    records.push_back(record);
    EXPECT_THAT(words_of(records), HasSubstr("two records are named 'archive/" + record.name + "'"));
  }
}

/// Without a record of the byte order, the elements would be read as little-endian.
TEST(TorchBytes, AByteOrderUnderADamagedNameIsMissed) {
  std::vector<NamedRecord> records = unpack(golden("torch/state.pt"));
  for (NamedRecord& record : records) {
    if (record.name == "byteorder") record.content = "big";
  }
  const std::string good = pack(records), name = "archive/byteorder";
  const std::size_t in_header = good.find(name), in_directory = good.rfind(name);
  ASSERT_NE(in_header, in_directory);
  for (const std::size_t begin : {in_header, in_directory}) {
    for (std::size_t i = 0; i < name.size(); ++i) {
      std::string bad = good;
      bad[begin + i] = static_cast<char>(bad[begin + i] ^ 1);
      MemoryFiles files;
      files.put("/state.pt", bad);
      try {
        files.open("/state.pt");
        ADD_FAILURE() << "read with " << bad.substr(begin, name.size());
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::kCorruption);
        EXPECT_THAT(error.what(), HasSubstr("the local header's name is not the directory's"));
        EXPECT_EQ(error.found(), begin == in_header ? bad.substr(begin, name.size()) : name);
      }
    }
  }
}

TEST(TorchBytes, TheByteOrderMustBeOneOfTwo) {
  for (const char* order : {"", "Little", "little ", "middle", "litt", "big\n"}) {
    std::vector<NamedRecord> records = unpack(golden("torch/state.pt"));
    for (NamedRecord& record : records) {
      if (record.name == "byteorder") record.content = order;
    }
    EXPECT_THAT(words_of(records), HasSubstr("neither little nor big")) << order;
  }
}

}  // namespace
}  // namespace shard
