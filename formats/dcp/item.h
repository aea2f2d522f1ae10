/// \file
/// Items: the torch.save zips that lie one behind the other in a `.distcp` file.
///
/// A tensor's item holds one pickled tensor and its storage; a bytes item any Python object. Zips count from their own
/// first byte, so a tensor's elements lie at any offset of the file.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "formats/dcp/fetched_file.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/zstd_item.h"
#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/zip/scan.h"
#include "formats/parts/zip/zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/core/hash_table.h"
#include "libshard/io/source_store.h"

namespace shard::dcp {

/// How elements that are not plain in their file become so.
struct Decoding {
  Item item;
  std::int64_t zstd_bytes = 0;                           ///< The item's bytes, decoded, where it is one of zstd.
  std::int64_t offset = 0, stored_bytes = 0, bytes = 0;  ///< The record: in the file, or in the decoded item.
  bool deflated = false;
  decoded_view::ElementCode code;
  friend bool operator==(const Decoding& a, const Decoding& b);
};

/// A view of the elements. Threads: safe.
std::shared_ptr<const RandomReader> decoded_view(std::shared_ptr<const RandomReader> file, const Decoding& decoding);

/// Where a tensor's elements lie.
struct Location {
  std::int64_t offset = 0;  ///< Where the storage begins, in the file or in the view.
  std::int64_t bytes = 0;
  std::optional<Decoding> decoding;    ///< Nothing: the file has them plain.
  std::optional<std::uint32_t> crc32;  ///< The CRC of the plain elements, where the zip has one of them.
};

/// The zip of an item, open. Threads: one.
class OpenItem {
 public:
  /// \param limit_bytes  what an item of zstd may decode to.
  /// \param arena        its budget pays for what is decoded and read; must outlive this.
  /// \throws Error kCorruption   not a torch.save zip there; see ZstdItem.
  /// \throws Error kUnsupported  a safetensors file is there (SerializationFormat.SAFETENSORS).
  /// With `salvage` records that are damaged are as if they were not there, see torch_save::salvage_saved_zip.
  OpenItem(const std::shared_ptr<FetchedFile>& file, const Item& item, std::int64_t limit_bytes, Arena& arena,
           bool salvage = false);
  /// \throws Error kCorruption  it is missing, or the budget is spent.
  std::vector<std::byte> data_pkl(Arena& arena) const;
  /// Whether storages lie beside the pickle.
  bool has_storages() const;
  /// \throws Error kCorruption  the storage's record is missing or of another size than the view says.
  Location location_of(const torch_save::TensorView& view) const;
  /// The little-endian bytes of a storage; nothing where there are none, or more than `limit_bytes`, or damaged ones.
  std::optional<std::vector<std::byte>> storage_bytes(std::string_view key, std::int64_t limit_bytes) const;

 private:
  const zip::Record& need(std::string_view name) const;

  Item item_;
  std::shared_ptr<const RandomReader> content_;
  std::int64_t zstd_bytes_ = 0;
  std::optional<zip::ZipReader> zip_;
  std::vector<zip::LostRecord> lost_;  ///< For repair.
};

/// What a tensor's item holds.
struct ItemTensor {
  DType dtype{};
  Dims shape, strides;
  std::int64_t first = 0;  ///< Elements from the storage's begin.
  Location location;
};

/// Opens tensors' items. What pickles say is remembered by their bytes: the pieces of one tensor mostly have equal
/// ones. Threads: one.
class ItemOpener {
 public:
  /// Shapes and strides go into `arena`, and its budget pays for what is read.
  explicit ItemOpener(Arena& arena, bool salvage = false) : arena_(arena), salvage_(salvage) {}
  /// \param box_bytes  what the item's tensor has by `.metadata`; bounds what a zstd stream may decode to.
  /// \throws Error kCorruption   no zip with one tensor in it.
  /// \throws Error kUnsupported  a tensor of another kind (sparse, quantized, ...); see OpenItem.
  ItemTensor open(const std::shared_ptr<FetchedFile>& file, const Item& item, std::int64_t box_bytes);

 private:
  struct Pickled {
    torch_save::TensorView view;
    std::string key;  ///< What view.key points to.
  };
  /// Valid until the next call.
  const Pickled& pickled(std::string_view data_pkl, const std::string& file);

  Arena& arena_;
  bool salvage_;
  HashMap<std::string, Pickled> known_;
  Pickled last_;  ///< One that is too long to be remembered.
};

}  // namespace shard::dcp
