/// \file
/// torch.save files in memory, for tests: golden ones, and ones repacked with changed records.
#pragma once

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "formats/parts/pickle/pickle.h"
#include "formats/parts/zip/zip.h"
#include "formats/torch/format.h"
#include "libshard/core/digest.h"
#include "libshard/io/local_disk.h"
#include "tests/formats/bytes_file.h"
#include "tests/support/memory_disk.h"

namespace shard::testing {

/// A file system in memory with files put into it.
class MemoryFiles {
 public:
  void put(const std::string& path, const std::string& content) {
    state_->put(path, std::as_bytes(std::span(content)));
  }
  std::unique_ptr<Reader> open(const std::string& path, const OpenOptions& options = {}) {
    return kTorchFormat.open({fs_.get(), {path}}, options);
  }
  bool detect(const std::string& path) { return kTorchFormat.detect({fs_.get(), {path}}); }
  std::string content(const std::string& path) {
    const std::vector<std::byte> bytes = state_->content(path);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  LocalDisk& fs() { return *fs_; }
  std::vector<std::string> paths() const { return state_->paths(); }

 private:
  std::shared_ptr<MemoryState> state_ = std::make_shared<MemoryState>();
  std::unique_ptr<LocalDisk> fs_ = make_memory_disk(state_);
};

struct NamedRecord {
  std::string name, content;  ///< The name without the top folder.
};

/// The records of a torch.save file.
inline std::vector<NamedRecord> unpack(const std::string& bytes) {
  const zip::ZipReader reader(std::make_shared<BytesFile>(bytes), 0, static_cast<std::int64_t>(bytes.size()));
  std::vector<NamedRecord> records;
  for (const zip::Record& record : reader.records()) {
    const std::vector<std::byte> content = reader.read(record, record.bytes);
    records.push_back({record.name.substr(reader.folder().size() + 1),
                       {reinterpret_cast<const char*>(content.data()), content.size()}});
  }
  return records;
}

/// A zip of these records as torch writes it, with true CRCs.
inline std::string pack(const std::vector<NamedRecord>& records) {
  zip::ZipLayout layout("archive");
  std::vector<std::int64_t> places;
  std::vector<std::uint32_t> crcs;
  for (const NamedRecord& record : records) {
    places.push_back(layout.add(record.name, static_cast<std::int64_t>(record.content.size())));
    crcs.push_back(crc32(std::as_bytes(std::span(record.content))));
  }
  std::string out(static_cast<std::size_t>(layout.total_bytes()), '?');
  for (const zip::ZipLayout::Span& span : layout.frame(crcs)) {
    out.replace(static_cast<std::size_t>(span.offset), span.content.size(), span.content);
  }
  for (std::size_t i = 0; i < records.size(); ++i) {
    out.replace(static_cast<std::size_t>(places[i]), records[i].content.size(), records[i].content);
  }
  return out;
}

/// A torch.save file, pickled again after `change`.
inline std::string repickled(const std::string& bytes, const std::function<void(Arena&, Value&)>& change) {
  std::vector<NamedRecord> records = unpack(bytes);
  const auto pickled = std::ranges::find(records, "data.pkl", &NamedRecord::name);
  Arena arena;
  pickle::LoadOptions options;
  options.allow = [](std::string_view, std::string_view) { return true; };
  Value* root = pickle::load(arena, std::as_bytes(std::span(pickled->content)), options);
  change(arena, *root);
  pickle::Dumper dumper({.protocol = 2, .tensor = {}});
  dumper.value(*root);
  pickled->content = dumper.finish();
  return pack(records);
}

/// Locates everything.
inline const Catalog& located(Reader& reader) {
  std::vector<std::uint32_t> all(reader.catalog().tensors.size());
  std::iota(all.begin(), all.end(), 0U);
  reader.locate(all);
  return reader.catalog();
}

inline const StoredTensor& stored_of(const Catalog& catalog, const std::string& name) {
  const Tensor* tensor = catalog.find(name);
  if (tensor == nullptr) throw std::runtime_error("no tensor " + name);
  return catalog.stored[catalog.chunks[tensor->first_chunk].stored];
}
inline const Storage& storage_of(const Catalog& catalog, const std::string& name) {
  return catalog.storages[stored_of(catalog, name).storage];
}

/// The elements of a tensor in row-major order, as Reader::bytes_of gives them.
inline std::string elements(Reader& reader, const std::string& name) {
  const StoredTensor& stored = stored_of(located(reader), name);
  const auto bytes = reader.bytes_of(stored.storage);
  const std::int64_t size = element_bytes(stored.dtype), begin = reader.catalog().storages[stored.storage].offset;
  std::int64_t count = 1;
  for (const std::int64_t side : stored.shape) count *= side;
  std::string out(static_cast<std::size_t>(count * size), '?');
  for (std::int64_t i = 0; i < count; ++i) {
    std::int64_t at = stored.first, rest = i;
    for (int d = stored.shape.size(); d-- > 0; rest /= stored.shape[d])
      at += rest % stored.shape[d] * stored.strides[d];
    bytes->read_at(begin + at * size, std::as_writable_bytes(std::span(out))
                                          .subspan(static_cast<std::size_t>(i * size), static_cast<std::size_t>(size)));
  }
  return out;
}

/// The same as numbers.
template <class T>
std::vector<T> values(Reader& reader, const std::string& name) {
  const std::string bytes = elements(reader, name);
  std::vector<T> out(bytes.size() / sizeof(T));
  std::memcpy(out.data(), bytes.data(), out.size() * sizeof(T));
  return out;
}

}  // namespace shard::testing
