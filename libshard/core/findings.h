/// \file
/// Findings: a sink for what is wrong with a checkpoint. The default one throws the first finding; one that collects
/// sees all that the readers and checks can tell.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "libshard/core/error.h"

namespace shard {

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
};

/// Throws what is reported.
Findings& throwing_findings();

/// Keeps what is reported, in order.
class CollectedFindings final : public Findings {
 public:
  void report(const Error& finding) override { all_.push_back(finding); }
  void tolerate(const Error& finding) override { all_.push_back(finding); }
  void warn(const Error& finding) override { warnings_.push_back(finding); }
  const std::vector<Error>& all() const { return all_; }
  const std::vector<Error>& warnings() const { return warnings_; }
  std::vector<FindingKind> kinds() const;  ///< Those of `all`. \pre every finding has a kind.

 private:
  std::vector<Error> all_, warnings_;
};

/// Adds what a reader knows to findings of a check that it calls, and passes them on.
class DetailedFindings final : public Findings {
 public:
  /// Ownership: `next` must outlive this.
  DetailedFindings(Findings& next, std::function<void(Error&)> add) : next_(next), add_(std::move(add)) {}
  void report(const Error& finding) override { next_.report(detailed(finding)); }
  void tolerate(const Error& finding) override { next_.tolerate(detailed(finding)); }
  void warn(const Error& finding) override { next_.warn(detailed(finding)); }

 private:
  Error detailed(const Error& finding) const;

  Findings& next_;
  std::function<void(Error&)> add_;
};

}  // namespace shard
