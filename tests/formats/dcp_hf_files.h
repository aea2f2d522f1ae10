/// \file
/// A dcp-hf folder of two ranks by hand, whose header texts a test can change.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "formats/registry.h"
#include "libshard/io/local_disk.h"
#include "tests/support/bytes.h"
#include "tests/support/memory_disk.h"
#include "tests/support/safetensors_file.h"

namespace shard::test {

/// Tensor "w" of float32 [5, 2]: rows 0 to 2 with rank 0, 3 and 4 with rank 1. "b" of uint8 [4]: whole with rank 0.
inline const std::string kFirstName = "shard-00001-model-00001-of-00001.safetensors";
inline const std::string kSecondName = "shard-00002-model-00001-of-00001.safetensors";
inline const std::string kFirstHeader =
    R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\": {\"saved_offsets\": [0, 0]}, \"b\": {\"saved_offsets\": [0]}}",)"
    R"("DCP_VERSION":"1.0","format":"pt"},)"
    R"("w":{"dtype":"F32","shape":[3,2],"data_offsets":[0,24]},"b":{"dtype":"U8","shape":[4],"data_offsets":[24,28]}})";
inline const std::string kSecondHeader =
    R"({"__metadata__":{"DCP_SHARDING_INFO":"{\"w\": {\"saved_offsets\": [3, 0]}}","DCP_VERSION":"1.0","format":"pt"},)"
    R"("w":{"dtype":"F32","shape":[2,2],"data_offsets":[0,16]}})";
/// The additions of our writer to the metadata, in each of the two.
inline const std::string kRecorded =
    R"("shardctl.ranks":"0-1","shardctl.shapes":"{\"w\": [5, 2]}","shardctl.world_size":"2",)";
inline const std::string kFirstData = "aaaabbbbccccddddeeeeffff1234";
inline const std::string kSecondData = "gggghhhhiiiijjjj";

/// `text` with its only occurrence of `from` replaced; an empty `from` changes nothing.
inline std::string changed(std::string text, const std::string& from, const std::string& to) {
  if (from.empty()) return text;
  const std::size_t at = text.find(from);
  if (at == std::string::npos) throw std::logic_error("the test's text lacks " + from);
  return text.replace(at, from.size(), to);
}

/// `header` as a writer here would write it.
inline std::string recorded(const std::string& header) {
  return changed(header, "\"format\"", kRecorded + "\"format\"");
}

struct DcpHfFolder {
  std::shared_ptr<MemoryState> state = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs = make_memory_disk(state);

  void put(const std::string& name, const std::string& header, const std::string& data) {
    state->put("/d/" + name, as_span(safetensors_file(header, data)));
  }
  void put_first(const std::string& header = kFirstHeader) { put(kFirstName, header, kFirstData); }
  void put_second(const std::string& header = kSecondHeader) { put(kSecondName, header, kSecondData); }
  std::unique_ptr<Reader> open(const OpenOptions& options = {}) const {
    return format_named("dcp-hf").open({fs.get(), {"/d"}}, options);
  }
};

}  // namespace shard::test
