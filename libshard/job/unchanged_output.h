/// \file
/// Whether the destination of a copy job already has the output that the job would write.
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

/// The manifest of `destination` if the request of this job equals the one that it records (tool, algorithm, options,
/// and the files of the source), and if the files there have the sizes that it states. With `has_own_places` each rank
/// writes to a place of its own, and looks for the files of its place. Reads no byte of the output; `verify` does.
///
/// \param request  called on rank 0
/// \param step  options of the collective steps
/// \returns the same on all ranks; nothing if the output is missing or differs. Collective.
/// \throws Error  from `request`; kPeer
std::optional<Manifest> unchanged_output(Group& group, const CollectiveStepOptions& step, LocalDisk& disk,
                                         const std::string& destination, bool has_own_places,
                                         const std::function<ManifestRequest()>& request);

}  // namespace shard
