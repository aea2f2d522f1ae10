/// \file
/// What the writing verbs share: open a source, copy it to DST, say what was done.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "apps/shardctl/render/export_report.h"
#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/log.h"
#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/source.h"
#include "libshard/core/object_faults.h"
#include "libshard/repair/salvage.h"

namespace shard::app {

/// What is a verb's own.
struct CopyVerb {
  std::function<OpenSource(const Session& session, const CopyRequest& request, Log& log)> open;
  /// What `open` could not save, for the result; null where it refuses all damage.
  const Salvage* salvage = nullptr;
  /// Changes what was selected, and may refuse it. May be empty.
  std::function<void(OpenSource& source, Selection& selection)> adjust{};
  /// Makes the writer of the output of the format's. May be empty.
  std::function<std::unique_ptr<Writer>(std::unique_ptr<Writer> writer)> wrap_writer{};
  /// What export decided, for the result; null for other verbs.
  const ExportReport* exported = nullptr;
  bool converts_all = false;  ///< export --dtype: all floating-point tensors are converted.
  /// Files that decide what is written, besides those that options name.
  std::vector<std::string> beside{};
  /// The objects that `open` could not read. Null: objects are dropped, or `open` refuses them.
  const ObjectFaults* faults = nullptr;
};

/// Runs a writing verb. Tensors of the source that are `damaged` are left out. \returns the exit code.
int run_copy_verb(Session& session, const CopyRequest& request, const CopyVerb& verb);

}  // namespace shard::app
