/// \file
/// Items: the torch.save zips that lie one behind the other in a `.distcp` file.
///
/// A tensor's item holds one pickled tensor and its storage; a bytes item any Python object. Zips count from their own
/// first byte, so a tensor's elements lie at any offset of the file.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "formats/dcp/metadata.h"
#include "formats/zip/zip.h"
#include "libshard/io/file_system.h"

namespace shard::dcp {

/// A file seen through memory: what `fetch` brought is served from there, the rest is read when asked for.
/// Threads: one.
class FetchedFile : public RandomReader {
 public:
  explicit FetchedFile(std::shared_ptr<const RandomReader> file);
  /// Brings the front and the end of items (small ones whole), in few calls; forgets what was brought before.
  /// \pre sorted by offset; inside the file.
  /// \returns how many of the items were brought: as many as about a mebibyte holds, at least one.
  std::size_t fetch(std::span<const Item> items);
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override;
  std::int64_t size() const override { return file_->size(); }
  /// Bytes that are in memory, or an empty span.
  std::span<const std::byte> view(std::int64_t offset_bytes, std::int64_t bytes) const;

 private:
  struct Part {
    std::int64_t begin, end;  ///< In the file.
    std::size_t at;           ///< In memory.
  };
  std::shared_ptr<const RandomReader> file_;
  std::vector<std::byte> memory_;
  std::vector<Part> parts_;  ///< By offset.
};

/// Where the elements of an item's tensor lie, and what they are.
struct ItemTensor {
  DType dtype{};
  Dims shape, strides;
  std::int64_t first = 0;       ///< Elements from the storage's begin.
  std::int64_t data_begin = 0;  ///< The storage's first byte in the file.
  std::int64_t data_bytes = 0;
};

/// Opens tensors' items. What pickles say is remembered by their bytes: the pieces of one tensor mostly have equal
/// ones. Threads: one.
class ItemOpener {
 public:
  /// Shapes and strides go into `arena`.
  explicit ItemOpener(Arena& arena) : arena_(arena) {}
  /// \throws Error kCorruption   no zip with one tensor in it.
  /// \throws Error kUnsupported  a tensor of another kind, compressed, big-endian, conjugated or negated.
  ItemTensor open(const std::shared_ptr<FetchedFile>& file, const Item& item);

 private:
  struct Pickled {
    ItemTensor tensor;   ///< Without its place.
    std::string record;  ///< "data/0"
  };
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const { return std::hash<std::string_view>{}(text); }
  };
  const Pickled& pickled(std::string_view data_pkl, const std::string& file);

  Arena& arena_;
  std::unordered_map<std::string, Pickled, TextHash, std::equal_to<>> known_;
};

/// The object of a bytes item. Tensors inside it become opaque values: their bytes cannot be reached by name.
/// Ownership: lives in `arena`, which takes over the pickle's bytes.
/// \throws Error kCorruption  no torch.save zip, or its pickle is damaged or names a class outside the list.
Value* load_object(Arena& arena, const std::shared_ptr<FetchedFile>& file, const Item& item);

}  // namespace shard::dcp
