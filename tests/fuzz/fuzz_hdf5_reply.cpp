#include "formats/hdf5/reply.h"
#include "libshard/core/error.h"
#include "tests/fuzz/target.h"

// A reply of the parser of HDF5 files about one group or dataset. An accepted entry has the meaning of its bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::int64_t kFileBytes = 1 << 20;
  const auto budget = std::make_shared<shard::Budget>();
  try {
    shard::Arena arena(budget);
    const std::span<const std::byte> payload = std::as_bytes(std::span(data, size));
    const shard::hdf5::Entry entry = shard::hdf5::decode_entry(payload, kFileBytes, arena);
    const std::string again = shard::hdf5::encode(entry);
    if (!std::ranges::equal(std::as_bytes(std::span(again)), payload)) __builtin_trap();
  } catch (const shard::Error&) {
  }
  if (budget->spent() > budget->limit()) __builtin_trap();
  return 0;
}
