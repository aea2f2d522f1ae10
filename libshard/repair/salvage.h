/// \file
/// Salvage: what a source that is opened for repair has lost, and what was read in another way than its metadata says.
///
/// A reader that is given one (OpenOptions::salvage) goes on where it would throw otherwise: what it cannot read is a
/// loss, with the name where something is left that says it. It never guesses, fills in or drops anything in silence.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/findings.h"
#include "libshard/core/hash_table.h"

namespace shard {

/// A box of a tensor.
struct LostBox {
  std::vector<std::int64_t> offsets, sizes;  ///< Elements.
  friend bool operator==(const LostBox&, const LostBox&) = default;
};

/// One thing that cannot be read.
struct Loss {
  enum class What : std::uint8_t { kTensor, kObject, kFile };  ///< kFile: a file, or a part of one.

  What what = What::kFile;
  std::string name{};                                ///< Of the tensor or object; empty where nothing says it.
  std::string dtype{};                               ///< Empty where nothing says it.
  std::optional<std::vector<std::int64_t>> shape{};  ///< Nothing where nothing says it.
  std::vector<LostBox> boxes{};                      ///< Of a tensor in several boxes: those that cannot be read.
  std::string file{};
  std::string why{};
  friend bool operator==(const Loss&, const Loss&) = default;
};

/// Whether an error is one of the source, which a repair goes on behind: damage, or bytes that the system cannot read.
/// All others end it.
inline bool is_damage(const Error& error) {
  return error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kNotFound;
}

/// Threads: one at a time.
class Salvage final : public Findings {
 public:
  /// Files are named from `sources` on (shown_from).
  explicit Salvage(std::vector<std::string> sources = {}) : sources_(std::move(sources)) {}
  /// A loss of the tensor that the finding names, else of its file. \throws  the finding, where it is not damage.
  void report(const Error& finding) override;
  /// Adds a loss. Of a tensor or object that is lost already only the boxes are added.
  void lose(Loss loss);
  /// The same of a tensor of which nothing but the name is left.
  void lose_tensor(std::string_view name, std::string_view file, std::string_view why);
  /// The bytes of a storage of the catalog are not all there, or are not what they were.
  void lose_storage(std::uint32_t storage, const Error& why);
  /// Why a storage is lost, or null. Valid until the next call.
  const Error* lost_storage(std::uint32_t storage) const { return storages_.find(storage); }
  /// Notes what was made up for, without loss: "a.pt: the directory of the zip was rebuilt".
  void mend(std::string what) { mended_.push_back(std::move(what)); }

  const std::vector<Loss>& losses() const { return losses_; }
  const std::vector<std::string>& mended() const { return mended_; }

 private:
  const std::vector<std::string> sources_;
  std::vector<Loss> losses_;
  std::vector<std::string> mended_;
  HashMap<std::string, std::uint32_t> named_;  ///< "t" or "o" and the name: the index of its loss.
  HashMap<std::uint32_t, Error> storages_;
};

/// What a loss says of why: the message, and its reason.
std::string reason_of(const Error& error);

}  // namespace shard
