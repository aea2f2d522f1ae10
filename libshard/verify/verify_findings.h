/// \file VerifyFindings: the findings of one verification, and their severity.
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/findings.h"
#include "libshard/ranks/group.h"

namespace shard {

enum class Severity : std::uint8_t {
  kError,
  kWarning,
  kUnread,  ///< This build cannot read the content, which may be intact. This is not damage.
};

struct Finding {
  Error error;
  Severity severity = Severity::kError;

  bool is_error() const { return severity == Severity::kError; }
};

/// Collects findings. Threads: any may report. Every finding has a kind afterwards. Beyond kMost findings, only the
/// count is kept. An error that is_unread (core/findings.h) accepts becomes Severity::kUnread, regardless of how it is
/// reported.
/// \throws Error kNotFound  the system cannot read (permission, EIO), which is never a finding.
class VerifyFindings final : public Findings {
 public:
  static constexpr std::size_t kMost = 100'000;

  /// Names files relative to `sources`: a file in a source folder by its path in the folder, a source itself by its
  /// last component.
  explicit VerifyFindings(std::vector<std::string> sources) : sources_(std::move(sources)) {}

  void report(const Error& finding) override { add(finding, Severity::kError); }
  void tolerate(const Error& finding) override { add(finding, Severity::kError); }
  void warn(const Error& finding) override { add(finding, Severity::kWarning); }

  /// Reports the root cause for a file, and suppresses the file's other findings.
  void explain(const Error& finding);
  /// Sets a function that is called once for each file with a finding, with the name that the finding uses. If it
  /// returns an Error, this error explains the file's findings.
  void explain_by(std::function<std::optional<Error>(const std::string& file)> look) { look_ = std::move(look); }

  /// Drops the findings about the content of tensors and objects whose names `is_chosen` rejects (checksums, replicas,
  /// gaps, unread content), and those that follow.
  void choose(std::function<bool(std::string_view name)> is_chosen);

  /// All findings without duplicates: errors first, then warnings, each sorted by file, tensor and text.
  std::vector<Finding> sorted() const;
  bool has_errors() const;
  /// The first finding about unread content, if there is one.
  std::optional<Error> first_unread() const;
  bool mentions(const std::string& file) const;  ///< Whether a finding names this file.
  std::size_t left_out() const { return left_out_; }
  void clear() { all_.clear(), mentioned_.clear(), left_out_ = 0, has_errors_ = false; }

  /// Adds the findings of all other ranks to rank 0's. Collective. \throws Error kPeer
  void gather(Group& group);

 private:
  void add(const Error& finding, Severity severity);
  bool is_dropped(const Error& finding) const;
  void look_at(const std::string& file);

  const std::vector<std::string> sources_;
  std::function<bool(std::string_view)> is_chosen_;
  std::function<std::optional<Error>(const std::string&)> look_;
  mutable std::mutex mutex_;
  std::vector<Finding> all_;
  std::set<std::string> mentioned_, explained_, looked_at_;  ///< Names of files.
  std::size_t left_out_ = 0;
  bool has_errors_ = false;
};

/// The names that `is_selected` selects, and names of tensors that share bytes with one of these, because a finding
/// about the bytes names only one of them. \pre tensors are located
std::function<bool(std::string_view)> chosen_names(const Catalog& catalog,
                                                   std::function<bool(std::string_view)> is_selected);

/// Reports an error about the source or about unread content, and throws every other error.
void take_finding(Findings& findings, const Error& error);

}  // namespace shard
