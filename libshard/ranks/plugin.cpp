#include "libshard/ranks/plugin.h"

#include "libshard/ranks/wire.h"

namespace shard {

namespace {

template <class Wire>
void pass(Wire& wire, Passed<Wire, GroupRequest>& request) {
  auto& launch = request.launch;
  wire.pass(request.timeout);
  wire.pass_below(launch.launcher, static_cast<std::int64_t>(Launcher::kSlurm) + 1);
  for (auto* const number : {&launch.rank, &launch.size, &launch.local_rank, &launch.local_size, &launch.port}) {
    wire.pass_below(*number, kMaxWorld + 1);
  }
  wire.pass(launch.agent_hosts_store, launch.address, launch.job, launch.token, launch.session_folder,
            launch.error_file);
}

}  // namespace

Bytes to_bytes(const GroupRequest& request) {
  WireWriter writer;
  pass(writer, request);
  return writer.take();
}

GroupRequest to_group_request(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  GroupRequest request;
  pass(reader, request);
  return request;
}

bool make_c_group(ConstBytes request, CGroup* made, const ErrorSink* errors,
                  const std::function<std::unique_ptr<Group>(const GroupRequest& request)>& make) noexcept {
  return put_error(errors, [&] { *made = to_c(make(to_group_request({request.data, request.count}))); });
}

}  // namespace shard
