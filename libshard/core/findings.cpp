#include "libshard/core/findings.h"

#include <fmt/format.h>

namespace shard {

namespace {

class ThrowingFindings final : public Findings {
 public:
  void report(const Error& finding) override { throw Error(finding); }
};

}  // namespace

std::string reason_of(const Error& error) {
  return error.why().empty() ? error.what() : fmt::format("{}: {}", error.what(), error.why());
}

Findings& throwing_findings() {
  static ThrowingFindings findings;  // It has no state, so all callers may share it.
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
