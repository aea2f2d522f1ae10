/// \file
/// What `verify` prints.
#pragma once

#include <set>
#include <span>
#include <string>
#include <vector>

#include "apps/shardctl/session/session.h"
#include "libshard/core/json_writer.h"
#include "libshard/verify/verify.h"

namespace shard::app {

/// All that `shardctl.verify/1` says.
struct VerifyReport {
  std::string label;  ///< The source, as the user wrote it.
  std::span<const Finding> findings;
  std::size_t left_out = 0;  ///< Findings past those that are kept.
  bool has_errors = false;
  VerifyCounts counts;
  std::set<std::string> globals;
  const Catalog* catalog = nullptr;      ///< Null: nothing could be opened.
  std::vector<std::string> not_checked;  ///< Entries of the source's folder beside it; folders end in '/'.

  bool ok() const { return !has_errors; }
};

/// One line a finding, the worst first, and a verdict.
void render_text(const Session& session, const VerifyReport& report);
void render_json(JsonWriter& json, const VerifyReport& report);

}  // namespace shard::app
