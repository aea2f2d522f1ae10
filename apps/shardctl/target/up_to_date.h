/// \file
/// --checksum and --if-changed: the manifest to write, and the check whether DST's manifest is equal already.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/job/copy_job.h"

namespace shard::app {

/// The manifest that the options request; nothing without --checksum and --if-changed. Reads the ends of the source's
/// files.
/// \param beside  other files that influence the output
/// \throws Error kNotFound  a path of the source does not exist
std::optional<ManifestRequest> manifest_request(const Session& session, const CopyRequest& request,
                                                const std::vector<std::string>& beside);

/// See CopyJob::computation: dequantization, adapters, averages and model maps.
std::string computation_digest(const Session& session, const CopyRequest& request);

/// Whether each rank writes to its own DST.
bool has_own_places(const Session& session, const RunRequest& run);

/// DST's manifest if DST already is what the command would write; see shard::unchanged_output. Collective.
std::optional<Manifest> unchanged_output(const Session& session, const CopyRequest& request,
                                         const std::vector<std::string>& beside);

}  // namespace shard::app
