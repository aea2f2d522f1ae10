/// \file
/// One torch.save file, open: its pickle as a tree, and where its storages lie. Zips and legacy files alike.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "formats/parts/pickle/pickle.h"
#include "libshard/core/arena.h"
#include "libshard/core/findings.h"
#include "libshard/core/value.h"
#include "libshard/io/source_store.h"

namespace shard::torch_save {

/// The bytes of one storage in its file.
struct SavedRecord {
  enum class Coding { kPlain, kDeflated, kOther };

  std::int64_t bytes = 0;         ///< The storage's size.
  std::int64_t stored_bytes = 0;  ///< In the file; another number only where it is compressed.
  std::int64_t order = 0;         ///< Sorts records by their place in the file.
  Coding coding = Coding::kPlain;
  std::optional<std::uint32_t> crc32{};  ///< The CRC of the storage's bytes, where the file has one.
};

/// Threads: const members may be called by several at once.
class SavedFile {
 public:
  virtual ~SavedFile() = default;
  /// As the pickle says it: tensors are still calls.
  Value& root() const { return *root_; }
  /// Whether elements are stored with their most significant byte first.
  bool is_big_endian() const { return big_endian_; }
  /// Who wrote it, for people: "zip, torch>=2.1", "legacy, torch<1.6".
  std::string_view version() const { return version_; }

  /// The name under which the file was saved, less its suffix: torch calls a zip's top folder so ("archive" for a
  /// stream). Empty where the file does not say.
  const std::string& saved_as() const { return saved_as_; }

  /// What a repair noted in the file (kLostNote); empty where it did not.
  const std::string& lost_note() const { return lost_note_; }

  virtual std::uint32_t record_count() const = 0;
  /// The number of the record that holds storage `key`, or kNoIndex.
  virtual std::uint32_t find(std::string_view key) const = 0;
  virtual SavedRecord record(std::uint32_t number) const = 0;
  /// For repair: why storage `key` is not found. \pre find says kNoIndex
  virtual std::string why_lost(std::string_view key) const = 0;
  /// What messages call it: "data/0".
  virtual std::string record_name(std::uint32_t number) const = 0;
  /// Offset in the file of the record's first byte. Cost: zips read the record's local header.
  /// \throws Error kCorruption  the header contradicts the zip's directory.
  virtual std::int64_t locate(std::uint32_t number) const = 0;

 protected:
  Value* root_ = nullptr;
  bool big_endian_ = false;
  std::string_view version_;
  std::string lost_note_, saved_as_;
};

struct SavedFileOptions {
  std::string shown;                                       ///< Names the file in messages.
  bool opaque_globals = false;                             ///< See OpenOptions.
  Findings* findings = &throwing_findings();               ///< Of the open source; not null.
  HashMap<const Value*, Value*>* behind_opaque = nullptr;  ///< See pickle::LoadOptions.
};

/// How their pickles are read.
pickle::LoadOptions load_options(const SavedFileOptions& options);

/// Opens a zip or a legacy file, told by its first bytes, and reads its pickle. What the tree points to, `arena` keeps.
/// If `findings` goes on, every byte of a zip is read, and damaged records count as missing.
/// \throws Error kUnsupported  TorchScript.
/// \throws Error kCorruption   see ZipReader, pickle::load and open_legacy_file; no data.pkl, a byte order that is
/// none, a version that torch refuses.
std::unique_ptr<SavedFile> open_saved_file(std::shared_ptr<const RandomReader> file, Arena& arena,
                                           const SavedFileOptions& options);

/// Finds the tensors in objects, where no name reaches them; for the many objects of a file, which may all share one
/// large part.
class HiddenTensors {
 public:
  /// Ownership: `arena`, whose budget pays for the steps, must outlive this.
  explicit HiddenTensors(Arena& arena) : arena_(arena) {}
  /// What kind of tensor lies in `object` (or is it), or empty: a sparse one, one in an attribute of a class, a bare
  /// storage. Such an object cannot be written without losing it.
  /// \throws Error kCorruption  the budget is spent.
  std::string_view kind_in(const Value& object);

 private:
  Arena& arena_;
};

/// True for _rebuild_parameter(data, requires_grad, hooks), and for the same with a state behind, in which no tensors
/// may hide: they would be written without their bytes. \throws Error kCorruption  see HiddenTensors.
bool is_parameter(const Value& value, HiddenTensors& hidden);

/// Whether such a Parameter has that state: attributes of its Python object, which are written with the call alone.
bool has_attributes(const Value& parameter);

}  // namespace shard::torch_save
