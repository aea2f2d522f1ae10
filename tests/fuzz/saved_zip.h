/// \file
/// A torch.save zip around a pickle, with the records that it names, so that fuzzing need not find CRCs and sizes.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/parts/pickle/pickle.h"
#include "formats/parts/zip/zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/digest.h"

namespace shard::fuzz {

/// The storages that a pickle names and their bytes, if they are small; none if it does not load.
inline std::map<std::string, std::int64_t> storages_of(std::string_view pickle) {
  constexpr std::int64_t kMost = 4096;
  std::map<std::string, std::int64_t> storages;
  std::vector<Value*> ids;
  pickle::LoadOptions options;
  options.file = "data.pkl";
  options.allow = pickle::is_known_global;
  options.opaque_unknown = true;
  options.persistent_ids = &ids;
  Arena arena(std::make_shared<Budget>());
  arena.earn(std::ssize(pickle));
  try {
    pickle::load(arena, std::as_bytes(std::span(pickle)), options);
    for (const Value* id : ids) {
      const torch_save::StorageId storage = torch_save::as_storage_id(*id);
      if (storage.bytes <= kMost && storages.size() < 16) storages.emplace(storage.key, storage.bytes);
    }
  } catch (const Error&) {
  }
  return storages;
}

/// data.pkl, byteorder, and the storages, whose bytes are zeros.
inline std::string saved_zip(std::string_view pickle, bool big_endian = false) {
  std::vector<std::pair<std::string, std::string>> records{{"data.pkl", std::string(pickle)},
                                                           {"byteorder", big_endian ? "big" : "little"}};
  for (const auto& [key, bytes] : storages_of(pickle)) {
    if (key.size() <= 64) records.emplace_back("data/" + key, std::string(static_cast<std::size_t>(bytes), '\0'));
  }
  zip::ZipLayout layout("archive");
  std::vector<std::int64_t> places;
  std::vector<std::uint32_t> crcs;
  for (const auto& [name, content] : records) {
    places.push_back(layout.add(name, static_cast<std::int64_t>(content.size())));
    crcs.push_back(crc32(std::as_bytes(std::span(content))));
  }
  std::string out(static_cast<std::size_t>(layout.total_bytes()), '\0');
  for (const zip::ZipLayout::Span& span : layout.frame(crcs)) {
    out.replace(static_cast<std::size_t>(span.offset), span.content.size(), span.content);
  }
  for (std::size_t i = 0; i < places.size(); ++i) {
    out.replace(static_cast<std::size_t>(places[i]), records[i].second.size(), records[i].second);
  }
  return out;
}

}  // namespace shard::fuzz
