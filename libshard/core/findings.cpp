#include "libshard/core/findings.h"

namespace shard {

namespace {

class ThrowingFindings final : public Findings {
 public:
  void report(const Error& finding) override { throw Error(finding); }
};

}  // namespace

Findings& throwing_findings() {
  static ThrowingFindings findings;  // Holds nothing, so all may share it.
  return findings;
}

std::vector<FindingKind> CollectedFindings::kinds() const {
  std::vector<FindingKind> kinds;
  for (const Error& finding : all_) kinds.push_back(finding.kind().value());
  return kinds;
}

Error DetailedFindings::detailed(const Error& finding) const {
  Error more(finding);
  add_(more);
  return more;
}

}  // namespace shard
