/// \file
/// One torch.save zip of a target catalog. Its storages get their offsets before a byte is written; its pickle is
/// written before them, its directory after them. ZipsWriter is a Writer of such files.
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

/// The pickle is never in memory as a whole. It is produced twice, once for its size and once for the file.
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

/// \throws Error kUnsupported  torch lacks the tensor's dtype.
void check_dtype(const Tensor& tensor);
/// Refuses content that a torch.save file cannot store: tensors of a dtype that torch lacks, objects with hidden
/// tensors (see HiddenTensors). \throws Error kUnsupported
void check_contents(const Catalog& target);

/// A Writer whose files are torch.save zips, followed by small text files. A derived class implements `place`, which
/// calls place_zip for each data file and then place_text, and pickle_of.
class ZipsWriter : public Writer {
 public:
  bool needs_checksums() const final { return true; }
  void begin_file(const Catalog& target, std::uint32_t file, FileWriter& to) final;
  std::unique_ptr<StorageFrames> frames(const Catalog& target) const final;
  void finish_file(const Catalog& target, std::uint32_t file, const Checksums& checksums, FileWriter& to) final;

 protected:
  /// Dumps the pickle of file number `file`; see PlacedZip.
  virtual PlacedZip::DumpPickle pickle_of(const Catalog& target, std::uint32_t file) = 0;

  /// Lays out the target's next file, whose folder in the zip gets its name from `name`. \pre the target has that file
  /// and all storages
  void place_zip(Catalog& target, const std::string& name);
  /// Adds a file with that content to the target. \pre no zip follows
  void place_text(Catalog& target, std::string path, std::string content);
  /// The zip of a file that was placed, or is being placed.
  PlacedZip& zip(std::uint32_t file) { return zips_[file]; }

 private:
  std::vector<PlacedZip> zips_;      ///< By file.
  std::vector<std::uint32_t> keys_;  ///< The key of each storage in its file; set when its pickle names it.
  std::vector<std::string> texts_;   ///< The contents of the files after the zips.
};

}  // namespace shard::torch_save
