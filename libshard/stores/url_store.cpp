#include "libshard/stores/url_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "libshard/core/error.h"
#include "libshard/core/shared_library.h"
#include "libshard/io/url_path.h"
#include "libshard/ranks/wire.h"

#ifdef SHARD_STORES_INSIDE
extern "C" bool shard_make_store_4(shard::ConstBytes request, const shard::StoreListener* listener, shard::CStore* made,
                                   const shard::ErrorSink* errors);
#endif

namespace shard {

namespace {

constexpr std::array<std::string_view, 5> kSchemes{"s3", "gs", "hf", "https", "http"};

#ifdef SHARD_STORES_INSIDE
MakeStore store_entry(const std::string&) { return shard_make_store_4; }
#else
constexpr char kStoresLibrary[] = "libshard_stores.so";

/// \throws Error kUnsupported
MakeStore store_entry(const std::string& url) {
  const SharedLibrary library(plugin_path(kStoresLibrary, kStoresLibrary));
  if (!library.is_open()) {
    throw Error(ErrorCode::kUnsupported, "cannot use URLs: the plug-in for object stores is not installed")
        .in_file(url)
        .because(library.why())
        .hint(is_file_there(library.path())
                  ? "install libcurl (libcurl4) and pugixml (libpugixml1v5)"
                  : fmt::format("install the plug-in {} there, or download the files first", kStoresLibrary));
  }
  return reinterpret_cast<MakeStore>(library.entry(kStorePluginEntry));
}
#endif

void check_scheme(const std::string& url) {
  const std::string_view scheme = url_scheme(url);
  if (std::ranges::find(kSchemes, scheme) != kSchemes.end()) return;
  throw Error(ErrorCode::kUnsupported, fmt::format("cannot use {}://", scheme))
      .in_file(url)
      .expected("s3://, gs://, hf:// or https://")
      .hint(scheme == "file" ? "give the path without file://" : "download the files first");
}

bool is_stopped(void* place) {
  const auto& is_stopped = static_cast<const UrlStore::Options*>(place)->is_stopped;
  return is_stopped && is_stopped();
}

void report_wait(void* place, ConstBytes text) {
  const auto& waits = static_cast<const UrlStore::Options*>(place)->waits;
  if (waits) waits(std::string(as_text({text.data, text.count})));
}

}  // namespace

template <class Wire>
void pass(Wire& wire, Passed<Wire, StoreRequest>& request) {
  constexpr std::int64_t kEndOfConnections = 4097, kEndOfReaders = 1 << 20;
  wire.pass(request.endpoint, request.region, request.is_anonymous, request.memory_bytes);
  wire.pass_below(request.connections, kEndOfConnections);
  wire.pass_below(request.readers, kEndOfReaders);
}

Bytes to_bytes(const StoreRequest& request) { return to_message(request); }

StoreRequest to_store_request(std::span<const std::byte> bytes) { return from_message<StoreRequest>(bytes); }

const SourceStore& UrlStore::store_of(const std::string& path) const {
  if (!is_url(path)) return disk_;
  return remote(path);
}

const ObjectStore& UrlStore::objects(const std::string& url) const { return remote(url); }

const UrlFiles& UrlStore::remote(const std::string& path) const {
  check_scheme(path);
  const std::scoped_lock lock(mutex_);
  if (remote_ == nullptr) {
    const MakeStore make = store_entry(path);
    const Bytes request = to_bytes(options_.request());
    const StoreListener listener{const_cast<Options*>(&options_), is_stopped, report_wait};
    CStore made{};
    throw_error([&](const ErrorSink* errors) {
      return make({request.data(), request.size()}, &listener, &made, errors);
    });
    remote_ = from_c(made);
  }
  return *remote_;
}

bool is_writable_url(std::string_view url) { return url_scheme(url) == "s3" || url_scheme(url) == "gs"; }

std::int64_t url_memory_bytes(std::int64_t all, int connections, int readers) {
  const std::int64_t blocks = connections + std::int64_t{2} * readers;
  return std::min(all / 4 * 3, blocks * (8 << 20));
}

}  // namespace shard
