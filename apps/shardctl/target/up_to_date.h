/// \file
/// --checksum and --if-changed: what a manifest is to say of a job, and whether DST's says it already.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/job/copy_job.h"

namespace shard::app {

/// What the options ask for; nothing without --checksum and --if-changed. Reads the ends of the source's files.
/// \param beside  other files that decide what is written
/// \throws Error kNotFound  a path of the source is not there
std::optional<ManifestRequest> manifest_request(const Session& session, const CopyRequest& request,
                                                const std::vector<std::string>& beside);

/// Whether ranks write to places of their own.
bool has_own_places(const Session& session, const RunRequest& run);

/// DST's manifest if DST is what would be written; see shard::unchanged_output. Collective.
std::optional<Manifest> unchanged_output(const Session& session, const CopyRequest& request,
                                         const std::vector<std::string>& beside);

}  // namespace shard::app
