/// \file
/// The common part of the writing verbs: open a source, copy it to DST, report the result.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/shardctl/render/copy.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/log.h"
#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/source.h"
#include "libshard/core/object_faults.h"
#include "libshard/repair/salvage.h"

namespace shard::app {

/// The parts that differ between verbs.
struct CopyVerb {
  std::function<OpenSource(const Session& session, const CopyRequest& request, Log& log)> open;
  /// Damage that `open` found, for the result; null if `open` refuses all damage.
  const Salvage* salvage = nullptr;
  const std::vector<std::string>* warnings = nullptr;  ///< More warnings that `open` found, for the result, or null.
  /// Changes the selection, and may refuse it. May be empty.
  std::function<void(OpenSource& source, Selection& selection)> adjust{};
  /// Turns the format's writer into the output's. May be empty.
  std::function<std::unique_ptr<Writer>(std::unique_ptr<Writer> writer)> wrap_writer{};
  /// The decisions of export, for the result; null for other verbs.
  const ExportReport* exported = nullptr;
  bool converts_all = false;  ///< export --dtype: converts all floating-point tensors.
  /// Files that influence the output, besides those that options name.
  std::vector<std::string> beside{};
  /// Objects that `open` could not read. Null: objects are dropped, or `open` refuses such objects.
  const ObjectFaults* faults = nullptr;
};

inline void append(std::vector<std::string>& all, const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
}

/// Runs a writing verb. Skips the source's `damaged` tensors. \returns the exit code.
int run_copy_verb(Session& session, const CopyRequest& request, const CopyVerb& verb);

}  // namespace shard::app
