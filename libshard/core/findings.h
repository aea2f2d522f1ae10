/// \file
/// Findings: a sink for what is wrong with a checkpoint. The default one throws the first finding; one that collects
/// sees all that the readers and checks can tell.
#pragma once

#include <functional>
#include <utility>
#include <vector>

#include "libshard/core/error.h"

namespace shard {

/// Threads: whoever reports from several threads takes care that one calls at a time.
class Findings {
 public:
  virtual ~Findings() = default;
  /// Takes a finding, or throws it. Where it returns, the reporter goes on as well as it can.
  virtual void report(const Error& finding) = 0;
};

/// Throws what is reported.
Findings& throwing_findings();

/// Keeps what is reported, in order.
class CollectedFindings final : public Findings {
 public:
  void report(const Error& finding) override { all_.push_back(finding); }
  const std::vector<Error>& all() const { return all_; }
  std::vector<FindingKind> kinds() const;  ///< Those of `all`. \pre every finding has a kind.

 private:
  std::vector<Error> all_;
};

/// Adds what a reader knows to findings of a check that it calls, and passes them on.
class DetailedFindings final : public Findings {
 public:
  /// Ownership: `next` must outlive this.
  DetailedFindings(Findings& next, std::function<void(Error&)> add) : next_(next), add_(std::move(add)) {}
  void report(const Error& finding) override;

 private:
  Findings& next_;
  std::function<void(Error&)> add_;
};

}  // namespace shard
