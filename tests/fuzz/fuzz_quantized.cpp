#include "formats/parts/quantization/config.h"
#include "formats/safetensors/format.h"
#include "libshard/compute/find_formulas.h"
#include "libshard/core/checked.h"
#include "tests/fuzz/target.h"

namespace {

/// Plain weights of a model, whose first bytes are read. Their number follows from the bytes of the file.
void compute(shard::fuzz::InputFiles& files) {
  using namespace shard;
  std::unique_ptr<Reader> plain = kSafetensorsFormat.open({&files, {"/in/x.safetensors"}}, {});
  const QuantizationFacts facts = read_quantization(files, "/in");
  const std::size_t stored = plain->catalog().tensors.size();
  const std::unique_ptr<Reader> reader = dequantized(std::move(plain), DType::kBfloat16, facts);
  const Catalog& catalog = reader->catalog();
  if (catalog.tensors.size() > stored) __builtin_trap();
  std::vector<std::uint32_t> all(catalog.tensors.size());
  std::iota(all.begin(), all.end(), 0U);
  reader->locate(all);
  for (const std::uint32_t i : all) {
    if (catalog.tensors[i].chunk_count == 0) continue;
    const std::uint32_t index = catalog.stored_of(catalog.tensors[i]).storage;
    const Storage& storage = catalog.storages[index];
    std::byte some[300];
    const auto count = static_cast<std::size_t>(std::min<std::int64_t>(storage.bytes, sizeof some));
    const std::shared_ptr<const RandomReader> bytes = reader->bytes_of(index);
    if (storage.plain) continue;
    bytes->read_at(0, std::span(some).first(count));
    bytes->read_at(storage.bytes - static_cast<std::int64_t>(count), std::span(some).first(count));
  }
}

}  // namespace

// A config.json and a safetensors file. Any Error is a fine answer.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  std::string_view input = shard::fuzz::as_text(data, size);
  shard::fuzz::InputFiles files;
  files.put("config.json", std::string(shard::fuzz::take_part(input)));
  files.put("x.safetensors", std::string(input));
  try {
    compute(files);
  } catch (const shard::Error&) {
  }
  return 0;
}
