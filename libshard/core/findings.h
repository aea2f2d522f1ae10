/// \file
/// Findings: what is wrong with an input. The default sink throws the first; `verify` will collect all.
#pragma once

#include "libshard/core/error.h"

namespace shard {

class Findings {
 public:
  virtual ~Findings() = default;
  /// A finding. \returns when the reader may go on as well as it can.
  virtual void report(const Error& finding) = 0;
};

/// Throws what is reported.
Findings& throwing_findings();

}  // namespace shard
