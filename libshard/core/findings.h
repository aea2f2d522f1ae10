/// \file Findings: the sink for all defects of a checkpoint. There are three kinds of sinks. The default one throws the
///   first finding. A collecting one receives everything that readers and checks find. Salvage, for repair, also
///   receives losses, because the reader continues past damage.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/core/error.h"

namespace shard {

/// A box of a tensor.
struct LostBox {
  std::vector<std::int64_t> offsets, sizes;  ///< In elements.
  friend bool operator==(const LostBox&, const LostBox&) = default;
};

/// A tensor, object or file that cannot be read.
struct Loss {
  enum class What : std::uint8_t { kTensor, kObject, kFile };  ///< kFile: a file, or a part of one.

  What what = What::kFile;
  std::string name{};                                ///< The tensor's or object's; empty if unknown.
  std::string dtype{};                               ///< Empty if unknown.
  std::optional<std::vector<std::int64_t>> shape{};  ///< Nothing if unknown.
  std::vector<LostBox> boxes{};                      ///< The unreadable boxes of a tensor in several boxes.
  std::string file{};
  std::string why{};
  friend bool operator==(const Loss&, const Loss&) = default;
};

/// True for errors of the source that a repair can skip: damage, or bytes that the system cannot read.
inline bool is_damage(const Error& error) {
  return error.code() == ErrorCode::kCorruption || error.code() == ErrorCode::kNotFound;
}

/// The message of an error and its reason, as a loss records them.
std::string reason_of(const Error& error);

/// Threads: callers must serialize calls.
class Findings {
 public:
  virtual ~Findings() = default;
  /// Records or throws a finding. If it returns, the caller continues as well as it can.
  virtual void report(const Error& finding) = 0;
  /// Records a defect that does not prevent correct reading. The default ignores it.
  virtual void tolerate(const Error& /*finding*/) {}
  /// Records something unusual that may be intentional. The default ignores it.
  virtual void warn(const Error& /*finding*/) {}

  // For repair. Other sinks record none of it.

  /// True if the reader must continue past damage and record losses, rather than report it.
  virtual bool goes_on() const { return false; }
  /// Records a loss. If the tensor or object is lost already, only its boxes are added.
  virtual void lose(Loss /*loss*/) {}
  /// Does the same for a tensor of which only the name is known.
  virtual void lose_tensor(std::string_view /*name*/, std::string_view /*file*/, std::string_view /*why*/) {}
  /// Records that bytes of a storage of the catalog are missing or changed.
  virtual void lose_storage(std::uint32_t /*storage*/, const Error& /*why*/) {}
  /// The reason for which a storage is lost, or null. Valid until the next call.
  virtual const Error* lost_storage(std::uint32_t /*storage*/) const { return nullptr; }
  /// Records a defect that was fixed without loss: "a.pt: rebuilt the directory of the zip".
  virtual void mend(std::string /*what*/) {}
};

/// A sink that throws every finding.
Findings& throwing_findings();

/// Stores findings, in order.
class CollectedFindings final : public Findings {
 public:
  void report(const Error& finding) override { all_.push_back(finding); }
  void tolerate(const Error& finding) override { all_.push_back(finding); }
  void warn(const Error& finding) override { warnings_.push_back(finding); }
  const std::vector<Error>& all() const { return all_; }
  const std::vector<Error>& warnings() const { return warnings_; }
  std::vector<FindingKind> kinds() const;  ///< The kinds of `all`. \pre every finding has a kind.

 private:
  std::vector<Error> all_, warnings_;
};

/// Adds details that a reader knows to the findings of a check that it calls, and forwards them.
class DetailedFindings final : public Findings {
 public:
  /// Ownership: `next` must outlive this.
  DetailedFindings(Findings& next, std::function<void(Error&)> add) : next_(next), add_(std::move(add)) {}
  void report(const Error& finding) override { next_.report(detailed(finding)); }
  void tolerate(const Error& finding) override { next_.tolerate(detailed(finding)); }
  void warn(const Error& finding) override { next_.warn(detailed(finding)); }
  bool goes_on() const override { return next_.goes_on(); }
  void lose(Loss loss) override { next_.lose(std::move(loss)); }
  void lose_tensor(std::string_view name, std::string_view file, std::string_view why) override {
    next_.lose_tensor(name, file, why);
  }
  void lose_storage(std::uint32_t storage, const Error& why) override { next_.lose_storage(storage, why); }
  const Error* lost_storage(std::uint32_t storage) const override { return next_.lost_storage(storage); }
  void mend(std::string what) override { next_.mend(std::move(what)); }

 private:
  Error detailed(const Error& finding) const;

  Findings& next_;
  std::function<void(Error&)> add_;
};

/// True for an error about content that this build does not read and that may be intact: a class outside the list, or
/// an unsupported kind of tensor or file. This is not damage, even if `is_damage` is true for it. A flipped bit can
/// turn an intact file into some unsupported forms, such as flags or a method of a zip record. Errors about those have
/// the kind bad_header and count as damage.
inline bool is_unread(const Error& error) {
  return error.kind() == FindingKind::kForbiddenGlobal || (error.code() == ErrorCode::kUnsupported && !error.kind());
}

}  // namespace shard
