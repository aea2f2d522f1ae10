/// \file
/// Writing formats that take all of one source as it is (Format::remake): what can be asked of them.
#pragma once

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "apps/shardctl/source/source.h"

namespace shard::app {

/// Opens the source again, with all that its files hold, and lays out what `format` makes of it.
/// \throws Error kUnsupported  the source is of another format; an option asks for something else than all of it, or
///   for another layout than --ranks; the verb is not one that does this.
Remake open_remake(const Session& session, const CopyRequest& request, const Format& format, const OpenSource& source);

}  // namespace shard::app
