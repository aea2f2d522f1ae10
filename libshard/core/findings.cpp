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

}  // namespace shard
