/// \file RemoteStore: the store of URLs. Inside libshard/stores/remote only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/stores/object_store.h"
#include "libshard/stores/plugin.h"
#include "libshard/stores/remote/http.h"
#include "libshard/stores/remote/place.h"

namespace shard::stores {

/// Paths are URLs. Listings are taken once and describe the files from then on, also for a later check whether a file
/// changed: each read compares the file with that description. Requests for objects ask each time. Threads: safe.
class RemoteStore final : public UrlFiles {
 public:
  /// `listener` must outlive this.
  RemoteStore(const StoreRequest& request, const StoreListener& listener, Environment environment,
              const HttpLimits& limits = {});
  ~RemoteStore() override;

  FileStatus status(const std::string& path) const override;
  std::vector<std::string> list(const std::string& folder) const override;
  std::unique_ptr<RandomReader> open(const std::string& path) const override;
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override;
  ObjectAnswer ask(const ObjectRequest& request) const override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace shard::stores
