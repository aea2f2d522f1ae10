/// \file
/// What the fuzz targets share: an input as a file of a memory file system, opened by one format.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "formats/registry.h"
#include "libshard/io/memory_file_system.h"

namespace shard::fuzz {

/// Opens /in/`name` holding `data` as `format`, locates every tensor and reads objects. Any Error is a fine answer;
/// everything else (crash, leak, foreign exception) is a finding.
inline void open_as(const char* format, const std::string& name, std::span<const std::uint8_t> data, bool folder) {
  auto state = std::make_shared<MemoryState>();
  state->put("/in/" + name, std::as_bytes(data));
  const std::unique_ptr<FileSystem> fs = make_memory_file_system(state);
  try {
    const std::unique_ptr<Reader> reader =
        format_named(format).open({fs.get(), {folder ? "/in" : "/in/" + name}}, OpenOptions{});
    std::vector<std::uint32_t> all(reader->catalog().tensors.size());
    std::iota(all.begin(), all.end(), 0U);
    reader->locate(all);
  } catch (const Error&) {
  }
}

}  // namespace shard::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
