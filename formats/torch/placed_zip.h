/// \file
/// One torch.save zip of a target catalog: its storages get their places before a byte is written; its pickle is
/// written before them, its directory after them. The files of ZipsWriter.
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

/// The pickle is never held: it is made twice, once for its size and once for the file.
/// Threads: after `place` zips of one target may be used at once, each by one thread.
class PlacedZip {
 public:
  /// Dumps the zip's pickle; asks view_of and own_tensor for its tensors, in the same order each time.
  using DumpPickle = std::function<void(const pickle::Sink& sink)>;

  /// `keys` has an entry for each storage of the target, kNoIndex at first; the zips of one target share it.
  explicit PlacedZip(std::vector<std::uint32_t>& keys) : keys_(&keys) {}

  /// For dump(): the view of a stored tensor. Keys count in the order in which they are asked for, as torch's do.
  TensorView view_of(const Catalog& target, const StoredTensor& stored);
  /// For dump(): a row-major tensor that is not the target's; its elements are `content`.
  TensorView own_tensor(Arena& arena, DType dtype, Dims shape, std::string content);

  /// Lays out the zip as file number `file` of the target: sets the file's path and bytes and its storages' offsets.
  /// Called once.
  void place(Catalog& target, std::uint32_t file, const std::string& name, const DumpPickle& dump);
  /// Writes the pickle and what else is known before the elements of the target's storages.
  void begin(FileWriter& file, const DumpPickle& dump);
  void append_before(std::uint32_t storage, std::string& out) const { zip_->append_before((*keys_)[storage], out); }
  void append_after(std::uint32_t storage, std::uint32_t crc, std::string& out) const {
    zip_->append_after((*keys_)[storage], crc, out);
  }
  /// Writes what follows the last storage. \pre begin
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
  std::vector<std::uint32_t> storages_;  ///< The target's, by key; kNoIndex: an own tensor's.
  std::vector<OwnTensor> own_;           ///< By key.
  std::size_t next_own_ = 0;             ///< That is asked for next.
  std::string key_text_;                 ///< What the last view's key points to.
  std::unique_ptr<SavedZip> zip_;
  std::int64_t pickle_bytes_ = 0;
  std::uint32_t pickle_crc_ = 0;
};

/// The frames of a target whose file i is zips[i]. Ownership: both must outlive it.
std::unique_ptr<StorageFrames> frames_of(const Catalog& target, const std::vector<PlacedZip>& zips);

/// Refuses what a torch.save file cannot hold: tensors of a dtype that torch lacks, objects in which tensors are hidden
/// (see HiddenTensors). \throws Error kUnsupported
void check_contents(const Catalog& target);

}  // namespace shard::torch_save
