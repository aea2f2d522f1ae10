/// \file The requests of ObjectStore to a bucket. Inside libshard/stores/remote only.
#pragma once

#include <string>

#include "libshard/stores/object_store.h"
#include "libshard/stores/remote/place.h"

namespace shard::stores {

/// Sends `request`, whose URL is that of `key` in `place`. \throws Error  see ObjectStore::ask
ObjectAnswer change_objects(Place& place, const std::string& key, const ObjectRequest& request);

}  // namespace shard::stores
