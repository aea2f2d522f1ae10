/// \file Salvage: records the losses of a source that is opened for repair, and the data that was read differently from
///   what its metadata states.
///
/// A reader that reports its findings to a Salvage continues past damage. Everything that it cannot read is a loss,
/// with its name if the name is known. It never guesses values, fills gaps or drops anything silently.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/core/findings.h"
#include "libshard/core/hash_table.h"

namespace shard {

/// Threads: one at a time.
class Salvage final : public Findings {
 public:
  /// File names are shown relative to `sources` (shown_from).
  explicit Salvage(std::vector<std::string> sources = {}) : sources_(std::move(sources)) {}
  /// Records a loss of the tensor that the finding names, or else of its file. \throws Error  a finding that is not
  /// damage.
  void report(const Error& finding) override;
  bool goes_on() const override { return true; }
  void lose(Loss loss) override;
  void lose_tensor(std::string_view name, std::string_view file, std::string_view why) override;
  void lose_storage(std::uint32_t storage, const Error& why) override;
  const Error* lost_storage(std::uint32_t storage) const override { return storages_.find(storage); }
  void mend(std::string what) override { mended_.push_back(std::move(what)); }
  /// Drops the losses that the caller excludes on purpose. \pre nothing is lost later
  void forget(const std::function<bool(const Loss&)>& is_left_out) { std::erase_if(losses_, is_left_out); }

  const std::vector<Loss>& losses() const { return losses_; }
  const std::vector<std::string>& mended() const { return mended_; }

 private:
  const std::vector<std::string> sources_;
  std::vector<Loss> losses_;
  std::vector<std::string> mended_;
  HashMap<std::string, std::uint32_t> named_;  ///< Key: "t" or "o" and the name. Value: the index of the loss.
  HashMap<std::uint32_t, Error> storages_;
};

}  // namespace shard
