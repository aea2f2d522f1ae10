/// \file Checks whether the destination of a copy job already has the output that the job would write.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "libshard/io/local_disk.h"
#include "libshard/job/copy_job.h"
#include "libshard/manifest/manifest.h"
#include "libshard/ranks/collective_step.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Returns the manifest of `destination` if it records the same request as this job's (tool, algorithm, options, and
/// the files of the source), and if the files there have the recorded sizes. With `has_own_places`, each rank writes to
/// its own place, and checks the files of its place. Reads no byte of the output. Only `verify` does.
///
/// \param store  reads the destination \param disk  its disk, with `has_own_places`
/// \param request  called on rank 0
/// \param step  options of the collective steps
/// \returns the same on all ranks; nothing if the output is missing or differs. Collective.
/// \throws Error  from `request`; kPeer
std::optional<Manifest> unchanged_output(Group& group, const CollectiveStepOptions& step, const SourceStore& store,
                                         LocalDisk& disk, const std::string& destination, bool has_own_places,
                                         const std::function<ManifestRequest()>& request);

}  // namespace shard
