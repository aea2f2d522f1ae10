/// \file
/// The golden dcp checkpoints of tests/data/dcp, in memory, for tests that change them.
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "formats/dcp/format.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/io/local_disk.h"
#include "tests/support/memory_disk.h"

namespace shard::test {

class GoldenDcp {
 public:
  explicit GoldenDcp(const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator(std::string(SHARD_TEST_DATA) + "/dcp/" + name)) {
      std::ifstream file(entry.path(), std::ios::binary);
      files[entry.path().filename().string()] = {std::istreambuf_iterator<char>(file), {}};
    }
  }

  /// Puts the files under /c and opens them.
  std::unique_ptr<Reader> open(const OpenOptions& options = {}) {
    for (const auto& [name, content] : files) state_->put("/c/" + name, std::as_bytes(std::span(content)));
    return kDcpFormat.open({fs_.get(), {"/c"}}, options);
  }
  std::unique_ptr<Reader> open_located() {
    std::unique_ptr<Reader> reader = open();
    std::vector<std::uint32_t> all(reader->catalog().tensors.size());
    std::iota(all.begin(), all.end(), 0U);
    reader->locate(all);
    return reader;
  }
  /// Replaces occurrence number `nth` of some bytes of a file; the test fails if there is none.
  void replace(const std::string& file, std::string_view what, std::string_view with, int nth = 0) {
    std::string& content = files.at(file);
    std::size_t at = content.find(what);
    for (; nth > 0 && at != std::string::npos; --nth) at = content.find(what, at + 1);
    if (at == std::string::npos) throw std::logic_error("the golden file does not hold what the test replaces");
    content.replace(at, what.size(), with);
    if (!file.ends_with(".metadata")) return;
    const std::uint64_t frame = content.size() - 11;  // Behind PROTO 4, FRAME and its eight bytes.
    std::memcpy(content.data() + 3, &frame, sizeof frame);
  }
  /// Replaces a pickled string of up to 255 bytes, wherever it is spelled out.
  void respell(std::string_view what, std::string_view with) {
    const auto pickled = [](std::string_view text) {
      return std::string("\x8c") + static_cast<char>(text.size()) + std::string(text);
    };
    replace(".metadata", pickled(what), pickled(with));
  }

  /// Makes every item unreadable.
  void metadata_files_only() {
    for (auto& [name, content] : files) {
      if (!name.ends_with(".metadata")) std::fill(content.begin(), content.end(), 'x');
    }
  }

  std::map<std::string, std::string> files;
  LocalDisk& fs() { return *fs_; }

 private:
  std::shared_ptr<MemoryState> state_ = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs_ = make_memory_disk(state_);
};

}  // namespace shard::test
