/// \file The interface of the plug-in for URLs, libshard_stores.so: one C entry. It may use a different C++
///   library from the program's (libshard/ranks/c_group.h). The one-file program contains the plug-in.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "libshard/stores/c_store.h"

namespace shard {

/// The settings of a store. The plug-in itself reads the environment variables and files that other clients read
/// (docs/stores.md).
struct StoreRequest {
  std::string endpoint;  ///< The address of an S3 service; empty: from the environment, or else AWS.
  std::string region;    ///< Empty: from the environment, a profile, or the server.
  bool is_anonymous = false;
  int connections = 8;                   ///< Requests at one time, at least 1.
  int readers = 1;                       ///< Threads that read different places at one time, at least 1.
  std::int64_t memory_bytes = 32 << 20;  ///< For bytes that were read ahead.
};

/// The request as bytes (wire.h), the form in which it is passed to the plug-in.
Bytes to_bytes(const StoreRequest& request);
/// \throws Error kPeer  the bytes are not a request
StoreRequest to_store_request(std::span<const std::byte> bytes);

/// The name of the entry. Its number changes with CStore, StoreListener, and the bytes of a request and of an error.
inline constexpr char kStorePluginEntry[] = "shard_make_store_4";
/// Creates the store. Returns false on errors. Ownership: the caller's. The listener's place must outlive it.
using MakeStore = bool (*)(ConstBytes request, const StoreListener* listener, CStore* made, const ErrorSink* errors);

}  // namespace shard
