/// \file
/// The layout of a complete torch.save zip, as torch 2.11 writes it: data.pkl, .format_version, .storage_alignment,
/// byteorder, data/<key>..., version, .data/serialization_id.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/zip/zip.h"

namespace shard::torch_save {

/// The name of the record in which a repair lists its losses.
inline constexpr const char* kLostRecord = "shardctl.lost";

/// Offsets count from the zip's first byte. Threads: const members may be called by several threads at once.
class SavedZip {
 public:
  /// `storage_bytes[i]` is the size of `data/<i>`. `note` is the record of a repair (kLostNote), in a separate record
  /// that torch ignores; empty if there is none.
  SavedZip(std::string folder, std::int64_t pickle_bytes, std::span<const std::int64_t> storage_bytes,
           std::string note = {});
  std::int64_t total_bytes() const { return layout_.total_bytes(); }
  std::int64_t data_offset(std::size_t storage) const { return layout_.data_offset(kFirstStorage + storage); }

  /// Appends the bytes from the zip's start to the pickle.
  void append_begin(std::string& out) const { layout_.append_header(0, out); }
  /// Appends what follows the pickle up to the first storage's header.
  void append_after_pickle(std::uint32_t pickle_crc, std::string& out) const;
  /// Appends the bytes between the previous storage and this one.
  void append_before(std::size_t storage, std::string& out) const {
    layout_.append_header(kFirstStorage + storage, out);
  }
  void append_after(std::size_t storage, std::uint32_t crc, std::string& out) const {
    layout_.append_descriptor(kFirstStorage + storage, crc, out);
  }
  /// The offset of the first byte after the last storage.
  std::int64_t end_offset() const { return layout_.header_offset(kFirstStorage + storages_); }
  /// Passes on the bytes from the last storage to the zip's end, in pieces.
  void write_end(std::uint32_t pickle_crc, const std::function<std::uint32_t(std::size_t storage)>& crc_of,
                 const std::function<void(std::string_view piece)>& sink) const;

  /// All bytes except the storages' own, as pieces (offset, content).
  struct Span {
    std::int64_t offset;
    std::string content;
  };
  std::vector<Span> frame(std::string_view data_pkl, std::span<const std::uint32_t> storage_crcs) const;

 private:
  static constexpr std::size_t kFirstStorage = 4;  ///< The index of the first storage's record.

  zip::ZipLayout layout_;
  std::size_t storages_;
  std::string note_;
};

}  // namespace shard::torch_save
