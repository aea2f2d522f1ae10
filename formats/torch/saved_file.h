/// \file
/// An open torch.save file, zip or legacy: its pickle as a tree, and the locations of its storages.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/pickle/pickle.h"
#include "libshard/core/arena.h"
#include "libshard/core/findings.h"
#include "libshard/core/short_text.h"
#include "libshard/core/value.h"
#include "libshard/io/source_store.h"

namespace shard::torch_save {

/// The bytes of one storage in its file.
struct SavedRecord {
  enum class Coding { kPlain, kDeflated, kOther };

  std::int64_t bytes = 0;         ///< The storage's size.
  std::int64_t stored_bytes = 0;  ///< Bytes in the file; differs from `bytes` only if the record is compressed.
  std::int64_t order = 0;         ///< Orders records as in the file.
  Coding coding = Coding::kPlain;
  std::optional<std::uint32_t> crc32{};  ///< The CRC of the storage's bytes, if the file has one.
};

/// Threads: const members may be called by several threads at once.
class SavedFile {
 public:
  virtual ~SavedFile() = default;
  /// The tree of the pickle, in which tensors are still calls.
  Value& root() const { return *root_; }
  /// Whether elements are stored with the most significant byte first.
  bool is_big_endian() const { return big_endian_; }
  /// The writer's version as a text for users: "zip, torch>=2.1", "legacy, torch<1.6".
  std::string_view version() const { return version_; }

  /// The name with which the file was saved, without its suffix. torch uses it as a zip's top folder ("archive" for a
  /// stream). Empty if the file does not record it.
  const std::string& saved_as() const { return saved_as_; }

  /// The record of a repair in the file (kLostNote); empty if there is none.
  const std::string& lost_note() const { return lost_note_; }

  virtual std::uint32_t record_count() const = 0;
  /// The number of the record of storage `key`, or kNoIndex.
  virtual std::uint32_t find(std::string_view key) const = 0;
  virtual SavedRecord record(std::uint32_t number) const = 0;
  /// For repair: the reason why storage `key` is missing. \pre find returns kNoIndex
  virtual std::string why_lost(std::string_view key) const = 0;
  /// The record's name in messages: "data/0".
  virtual std::string record_name(std::uint32_t number) const = 0;
  /// The offset in the file of the record's first byte. Cost: zips read the record's local header.
  /// \throws Error kCorruption  the header contradicts the zip's directory.
  virtual std::int64_t locate(std::uint32_t number) const = 0;
  /// Does the same for several records, in the same order.
  virtual std::vector<std::int64_t> locate_all(std::span<const std::uint32_t> numbers) const = 0;

 protected:
  Value* root_ = nullptr;
  bool big_endian_ = false;
  std::string_view version_;
  std::string lost_note_, saved_as_;
};

struct SavedFileOptions {
  std::string shown;                                       ///< The file's name in messages.
  bool opaque_globals = false;                             ///< See OpenOptions.
  Findings* findings = &throwing_findings();               ///< The findings of the open source; not null.
  HashMap<const Value*, Value*>* behind_opaque = nullptr;  ///< See pickle::LoadOptions.
};

/// The options with which pickles of such files are loaded.
pickle::LoadOptions load_options(const SavedFileOptions& options);

/// Opens a zip or a legacy file, which its first bytes distinguish, and reads its pickle. `arena` keeps everything to
/// which the tree points. If `findings` continues after an error, every byte of a zip is read, and damaged records
/// count as missing.
/// \throws Error kUnsupported  TorchScript.
/// \throws Error kCorruption   see ZipReader, pickle::load and open_legacy_file; no data.pkl, an invalid byte order, a
///   version that torch refuses.
std::unique_ptr<SavedFile> open_saved_file(std::shared_ptr<const RandomReader> file, Arena& arena,
                                           const SavedFileOptions& options);

/// Finds the tensors in objects that have no name, in a file whose many objects may all share one large part.
class HiddenTensors {
 public:
  /// Ownership: `arena` must outlive this; the steps are charged to its budget.
  explicit HiddenTensors(Arena& arena) : arena_(arena) {}
  /// The kind of a tensor that `object` is or contains: a sparse one, one in an attribute of a class, a bare storage.
  /// Empty if there is none. Such an object cannot be written without losing the tensor.
  /// \throws Error kCorruption  the budget is exhausted.
  std::string_view kind_in(const Value& object);
  /// Whether `object` is or contains a tensor or a storage that the catalog does not list. Unlike kind_in, this does
  /// not count kTensor values, which are listed under other names. \throws Error kCorruption  see kind_in.
  bool holds_unlisted(const Value& object);

 private:
  Arena& arena_;
};

/// True for _rebuild_parameter(data, requires_grad, hooks), and for the same call with a state that contains no
/// tensors. Tensors in the state would be written without their bytes. \throws Error kCorruption  see HiddenTensors.
bool is_parameter(const Value& value, HiddenTensors& hidden);

/// Whether such a Parameter has a state: attributes of its Python object, which are written only with the call.
bool has_attributes(const Value& parameter);

/// Removes the state from a call of _rebuild_parameter_with_state if it cannot be written because it contains tensors
/// (Megatron's main_grad) or values of classes outside the list. The Parameter's own elements do not depend on it.
/// \returns whether it did. \throws Error kCorruption  see HiddenTensors.
bool drop_attributes(Arena& arena, Value& parameter, HiddenTensors& hidden);
/// The warning about tensors without the attributes that their Python objects had.
std::string lost_attributes_text(const FirstNames& names);

}  // namespace shard::torch_save
