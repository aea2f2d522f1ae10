/// \file
/// One torch.save zip of a target catalog. Its storages get their offsets before a byte is written; its pickle is
/// written before them, its directory after them. ZipsWriter writes files of this kind.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "formats/torch/saved_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/io/file_writer.h"

namespace shard::torch_save {

/// The pickle is never in memory as a whole: it is produced twice, once for its size and once for the file.
/// Threads: after `place`, several threads may use the zips of one target, each zip by one thread.
class PlacedZip {
 public:
  /// Dumps the zip's pickle. Calls view_of and own_tensor for its tensors, in the same order each time.
  using DumpPickle = std::function<void(const pickle::Sink& sink)>;

  /// `keys` has an entry for each storage of the target, initially kNoIndex. All zips of one target share it.
  explicit PlacedZip(std::vector<std::uint32_t>& keys) : keys_(&keys) {}

  /// For dump(): the view of a stored tensor. Keys are numbered in the order of the calls, as torch does.
  TensorView view_of(const Catalog& target, const StoredTensor& stored);
  /// For dump(): a row-major tensor that is not in the target; its elements are `content`.
  TensorView own_tensor(Arena& arena, DType dtype, Dims shape, std::string content);

  /// Lays out the zip as file number `file` of the target. Sets the file's path and bytes and its storages' offsets.
  /// Called once.
  void place(Catalog& target, std::uint32_t file, const std::string& name, const DumpPickle& dump);
  /// Writes the pickle and everything else before the elements of the target's storages.
  void begin(FileWriter& file, const DumpPickle& dump);
  void append_before(std::uint32_t storage, std::string& out) const { zip_->append_before((*keys_)[storage], out); }
  void append_after(std::uint32_t storage, std::uint32_t crc, std::string& out) const {
    zip_->append_after((*keys_)[storage], crc, out);
  }
  /// Writes the bytes after the last storage. \pre begin was called
  void finish(const Checksums& checksums, FileWriter& file) const;

 private:
  struct OwnTensor {
    std::uint32_t key = 0;
    std::string content;
    std::uint32_t crc = 0;
  };
  std::string_view text_of(std::uint32_t key);
  void write_own_tensors(FileWriter& file) const;

  std::vector<std::uint32_t>* keys_;
  std::vector<std::uint32_t> storages_;  ///< The target's storages, by key; kNoIndex for an own tensor.
  std::vector<OwnTensor> own_;           ///< By key.
  std::size_t next_own_ = 0;             ///< The next one that own_tensor returns.
  std::string key_text_;                 ///< The text of the last view's key.
  std::unique_ptr<SavedZip> zip_;
  std::int64_t pickle_bytes_ = 0;
  std::uint32_t pickle_crc_ = 0;
};

/// The frames of a target whose file i is zips[i]. Ownership: both must outlive it.
std::unique_ptr<StorageFrames> frames_of(const Catalog& target, const std::vector<PlacedZip>& zips);

/// Refuses content that a torch.save file cannot store: tensors of a dtype that torch lacks, objects with hidden
/// tensors (see HiddenTensors). \throws Error kUnsupported
void check_contents(const Catalog& target);

}  // namespace shard::torch_save
