/// \file
/// Items: the torch.save zips that follow one another in a `.distcp` file.
///
/// A tensor's item contains one pickled tensor and its storage. A bytes item contains any Python object. Offsets in a
/// zip count from its own first byte, so a tensor's elements can be at any offset of the file.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "formats/dcp/item_bytes.h"
#include "formats/dcp/metadata.h"
#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/zip/scan.h"
#include "formats/parts/zip/zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/hash_table.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// How to decode elements that are not plain in their file.
struct Decoding {
  Item item;
  /// The size of the decoded item if it is compressed with zstd.
  std::int64_t zstd_bytes = 0;
  std::int64_t offset = 0, stored_bytes = 0, bytes = 0;  ///< The record's offset in the file, or in the decoded item.
  bool deflated = false;
  decoded_view::ElementCode code;
  friend bool operator==(const Decoding& a, const Decoding& b);
};

/// A view of the elements. Threads: safe.
std::shared_ptr<const RandomReader> decoded_view(std::shared_ptr<const RandomReader> file, const Decoding& decoding);

/// The location of a tensor's elements.
struct Location {
  std::int64_t offset = 0;  ///< The offset of the storage in the file or in the decoded view.
  std::int64_t bytes = 0;
  std::optional<Decoding> decoding;    ///< Empty if the elements are plain in the file.
  std::optional<std::uint32_t> crc32;  ///< The CRC-32 of the plain elements, if the zip records one.
};

/// The bytes that identify a safetensors file: the length of its JSON header, and the header's first two.
inline constexpr std::size_t kSignatureBytes = 10;
bool is_safetensors(std::span<const std::byte, kSignatureBytes> head);
/// The error for a file of SerializationFormat.SAFETENSORS. Its bytes begin like those of a safetensors file.
Error written_as_safetensors();

/// The open zip of an item. Threads: one.
class OpenItem {
 public:
  /// \param limit_bytes  the largest size to which an item compressed with zstd may decode.
  /// \param arena        decoded and read bytes are charged to its budget; must outlive this.
  /// \param salvage      damaged records count as missing, see torch_save::salvage_saved_zip.
  /// \throws Error kCorruption   the bytes are not a torch.save zip; see ZstdItem.
  /// \throws Error kUnsupported  the bytes are a safetensors file (SerializationFormat.SAFETENSORS).
  OpenItem(const std::shared_ptr<FetchedFile>& file, const Item& item, std::int64_t limit_bytes, Arena& arena,
           bool salvage = false);
  /// \throws Error kCorruption  the record is missing, or the budget is exhausted.
  std::vector<std::byte> data_pkl(Arena& arena) const;
  /// Whether the zip has records of storages beside the pickle.
  bool has_storages() const;
  /// \throws Error kCorruption  the storage's record is missing, or its size differs from the one in the view.
  Location location_of(const torch_save::TensorView& view) const;
  /// The little-endian bytes of a storage. Empty if it is missing, damaged or larger than `limit_bytes`.
  std::optional<std::vector<std::byte>> storage_bytes(std::string_view key, std::int64_t limit_bytes) const;

 private:
  const zip::Record& need(std::string_view name) const;

  Item item_;
  std::shared_ptr<const RandomReader> content_;
  std::int64_t zstd_bytes_ = 0;
  std::optional<zip::ZipReader> zip_;
  std::vector<zip::LostRecord> lost_;  ///< For repair.
};

/// The tensor in a tensor's item.
struct ItemTensor {
  DType dtype{};
  Dims shape, strides;
  std::int64_t first = 0;  ///< The first element, counted from the storage's start.
  Location location;
};

/// Opens the items of tensors. Parsed pickles are cached by their bytes, because the chunks of one tensor usually have
/// equal pickles. Threads: one.
class ItemOpener {
 public:
  /// Shapes and strides are stored in `arena`; bytes read are charged to its budget.
  explicit ItemOpener(Arena& arena, bool salvage = false) : arena_(arena), salvage_(salvage) {}
  /// \param box_bytes  the size of the item's box by `.metadata`; limits the decoded size of a zstd stream.
  /// \throws Error kCorruption   the item is not a zip with one tensor.
  /// \throws Error kUnsupported  the tensor is of an unsupported kind (sparse, quantized, ...); see OpenItem.
  ItemTensor open(const std::shared_ptr<FetchedFile>& file, const Item& item, std::int64_t box_bytes);

 private:
  struct Pickled {
    torch_save::TensorView view;
    std::string key;  ///< Storage for the text of view.key.
  };
  /// Valid until the next call.
  const Pickled& pickled(std::string_view data_pkl, const std::string& file);

  Arena& arena_;
  bool salvage_;
  HashMap<std::string, Pickled> known_;
  Pickled last_;  ///< The last pickle, if it is too long for the cache.
};

}  // namespace shard::dcp
