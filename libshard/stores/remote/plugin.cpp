// The entry of the plug-in libshard_stores.so.
#include "libshard/stores/plugin.h"

#include <cstdlib>

#include "libshard/stores/remote/remote_store.h"

namespace {

std::string process_variable(const std::string& name) {
  const char* const value = std::getenv(name.c_str());
  return value == nullptr ? "" : value;
}

}  // namespace

/// Its name is kStorePluginEntry.
extern "C" bool shard_make_store_4(shard::ConstBytes request, const shard::StoreListener* listener, shard::CStore* made,
                                   const shard::ErrorSink* errors) {
  return shard::put_error(errors, [&] {
    *made = shard::to_c(shard::stores::remote_store(shard::to_store_request({request.data, request.count}), *listener,
                                                    process_variable));
  });
}
