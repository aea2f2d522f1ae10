/// \file
/// VerifyFindings: the findings of one verification, with their severity.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "libshard/core/findings.h"
#include "libshard/ranks/group.h"

namespace shard {

enum class Severity : std::uint8_t {
  kError,
  kWarning,
  kUnread,  ///< This build does not read it, and it may be whole: no damage.
};

struct Finding {
  Error error;
  Severity severity = Severity::kError;

  bool is_error() const { return severity == Severity::kError; }
};

/// Threads: any may report. Each finding has a kind afterwards. Beyond kMost findings, only the count is kept. What
/// is_unread of an error (repair/unread.h) is true for becomes Severity::kUnread, however it is reported. \throws Error
/// kNotFound  what is reported is a failure of the system to read (permission, EIO), which no finding is.
class VerifyFindings final : public Findings {
 public:
  static constexpr std::size_t kMost = 100'000;

  /// Files are named from `sources` on: those in a folder by what follows it, a source itself by its last component.
  explicit VerifyFindings(std::vector<std::string> sources) : sources_(std::move(sources)) {}

  void report(const Error& finding) override { add(finding, Severity::kError); }
  void tolerate(const Error& finding) override { add(finding, Severity::kError); }
  void warn(const Error& finding) override { add(finding, Severity::kWarning); }

  /// Reports the root cause for a file; its other findings are suppressed.
  void explain(const Error& finding);
  /// Asked once for each file that a finding is of, as the finding names it: an Error explains it.
  void explain_by(std::function<std::optional<Error>(const std::string& file)> look) { look_ = std::move(look); }

  /// Errors first, then warnings; those by file, tensor and text, each once.
  std::vector<Finding> sorted() const;
  bool has_errors() const;
  /// The first finding of something that is not read, if there is one.
  std::optional<Error> first_unread() const;
  bool mentions(const std::string& file) const;  ///< Whether a finding is of that file.
  std::size_t left_out() const { return left_out_; }
  void clear() { all_.clear(), mentioned_.clear(), has_errors_ = false; }

  /// Adds those of all other ranks to rank 0's. Collective. \throws Error kPeer
  void gather(Group& group);

 private:
  void add(const Error& finding, Severity severity);
  void look_at(const std::string& file);

  const std::vector<std::string> sources_;
  std::function<std::optional<Error>(const std::string&)> look_;
  mutable std::mutex mutex_;
  std::vector<Finding> all_;
  std::set<std::string> mentioned_, explained_, looked_at_;  ///< Files.
  std::size_t left_out_ = 0;
  bool has_errors_ = false;
};

/// Reports what is wrong with the source and what this build does not read, and throws everything else.
void take_finding(Findings& findings, const Error& error);

}  // namespace shard
