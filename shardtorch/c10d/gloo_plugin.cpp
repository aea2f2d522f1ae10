// libshard_gloo.so's entry: a Gloo group for a launch.
#include <c10/util/Logging.h>

#include <cstdlib>

#include "libshard/ranks/plugin.h"
#include "shardtorch/c10d/c10d_group.h"
#include "shardtorch/c10d/gloo.h"
#include "shardtorch/c10d/libtorch_version.h"

namespace shard {

namespace {

std::unique_ptr<Group> form_gloo_group(const GroupRequest& request) {
  check_libtorch("gloo");
  const Launch& launch = request.launch;
  setenv("TORCH_CPP_LOG_LEVEL", "FATAL", 0);  // Its warnings repeat our errors.
  c10::initLogging();
  std::unique_ptr<Group> group;
  as_errors("the rendezvous", [&] {
    group = make_gloo_group(make_store(launch, request.timeout), launch.rank, launch.size,
                            gloo_device(launch.is_on_one_host()), request.timeout);
  });
  return group;
}

}  // namespace

}  // namespace shard

extern "C" bool shard_make_group_2(shard::ConstBytes request, shard::CGroup* made, const shard::ErrorSink* errors) {
  return shard::make_c_group(request, made, errors, shard::form_gloo_group);
}
