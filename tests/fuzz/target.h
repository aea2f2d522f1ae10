/// \file
/// Common code of the fuzz targets: opening an input as a format, and splitting inputs.
#pragma once

#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/registry.h"
#include "tests/fuzz/input_files.h"

namespace shard::fuzz {

inline std::string_view as_text(const std::uint8_t* data, std::size_t size) {
  return {reinterpret_cast<const char*>(data), size};
}

/// The oracle of costs: a reader's budget must follow from the bytes of its files, each read a few times.
inline void check_cost(const Budget& budget, std::int64_t held_bytes) {
  constexpr std::int64_t kTimes = 3;
  if (budget.read() > kTimes * held_bytes) __builtin_trap();
  if (budget.limit() > kBudgetFloor + kTimes * (kBudgetPerByte + kBudgetPerDataByte) * held_bytes) __builtin_trap();
  if (budget.spent() > budget.limit()) __builtin_trap();
}

/// Opens `paths` of `files` as `format`, locates every tensor, reads the start of each and all objects. Any Error is a
/// fine answer; everything else (crash, leak, foreign exception, memory by a number in the input, a cost out of
/// proportion to the input) is a finding. False if there was an Error.
inline bool open_as(const Format& format, InputFiles& files, std::vector<std::string> paths,
                    const OpenOptions& options = {}) {
  try {
    const std::unique_ptr<Reader> reader = format.open({&files, std::move(paths)}, options);
    const Catalog& catalog = reader->catalog();
    std::vector<std::uint32_t> all(catalog.tensors.size());
    std::iota(all.begin(), all.end(), 0U);
    const std::shared_ptr<const Budget> budget = catalog.arena->budget();
    check_cost(*budget, files.held_bytes());
    reader->locate(all);
    for (std::uint32_t i = 0; i < catalog.storages.size(); ++i) {
      const Storage& storage = catalog.storages[i];
      std::byte first[64];
      const auto count = static_cast<std::size_t>(std::min<std::int64_t>(storage.bytes, sizeof first));
      if (storage.offset >= 0) reader->bytes_of(i)->read_at(storage.offset, std::span(first).first(count));
    }
    reader->load_objects();
    check_cost(*budget, files.held_bytes());
    return true;
  } catch (const Error&) {
    return false;
  }
}

/// Removes the first of several parts of an input: two bytes of length, little-endian, then the part. A rest that is
/// too short is a part by itself.
inline std::string_view take_part(std::string_view& input) {
  if (input.size() < 2) return std::exchange(input, {});
  const std::size_t length = static_cast<unsigned char>(input[0]) | std::size_t{static_cast<unsigned char>(input[1])}
                                                                        << 8;
  const std::string_view part = input.substr(2, length);
  input.remove_prefix(2 + part.size());
  return part;
}

}  // namespace shard::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);
