/// \file
/// One torch.save zip of a target catalog: its storages get their places before a byte is written, all around them is
/// written at the end. What the torch and the torch-ranks Writer share.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "formats/torch/tensor_pickle.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/io/file_writer.h"

namespace shard::torch_save {

class PlacedZip {
 public:
  /// `keys` has an entry for each storage of the target, kNoIndex at first; the zips of one target share it.
  PlacedZip(const Catalog& target, std::vector<std::uint32_t>& keys) : target_(&target), keys_(&keys) {}

  /// For dump(): the view of a stored tensor. Keys count in the order in which they are asked for, as torch's do.
  TensorView view_of(const StoredTensor& stored);
  /// For dump(): a row-major tensor that is not the target's; its elements are `content`.
  TensorView own_tensor(DType dtype, Dims shape, std::string content);

  /// Lays out the zip as file number `file` of the target, with the pickle for which the views were made: sets the
  /// file's path and bytes and its storages' offsets. Called once.
  void place(Catalog& target, std::uint32_t file, const std::string& name, std::string data_pkl);
  /// Writes all but the elements of the target's storages.
  void write(const Checksums& checksums, FileWriter& file) const;

 private:
  struct Record {
    std::uint32_t storage = kNoIndex;  ///< Of the target; kNoIndex: an own tensor's.
    std::string content;               ///< Of an own tensor's.
  };
  std::string_view next_key() const;

  const Catalog* target_;
  std::vector<std::uint32_t>* keys_;
  std::vector<Record> records_;  ///< By key.
  std::unique_ptr<SavedZip> zip_;
};

/// Refuses what a torch.save file cannot hold: objects in which tensors are hidden (see HiddenTensors).
/// \throws Error kUnsupported
void check_objects(const Catalog& target);

}  // namespace shard::torch_save
