/// \file The store of URLs. Inside libshard/stores/remote only.
#pragma once

#include <memory>

#include "libshard/stores/object_store.h"
#include "libshard/stores/plugin.h"
#include "libshard/stores/remote/http.h"
#include "libshard/stores/remote/place.h"

namespace shard::stores {

/// Paths are URLs. Listings are taken once and describe the files from then on. Each read compares the file with that
/// description, to notice changes. Requests for objects ask each time. Threads: safe. `listener` must outlive the
/// store.
std::unique_ptr<UrlFiles> remote_store(const StoreRequest& request, const StoreListener& listener,
                                       Environment environment, const HttpLimits& limits = {});

}  // namespace shard::stores
