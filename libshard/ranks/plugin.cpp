#include "libshard/ranks/plugin.h"

#include "libshard/ranks/wire.h"

namespace shard {

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

Bytes to_bytes(const GroupRequest& request) { return to_message(request); }

GroupRequest to_group_request(std::span<const std::byte> bytes) { return from_message<GroupRequest>(bytes); }

bool make_c_group(ConstBytes request, CGroup* made, const ErrorSink* errors,
                  const std::function<std::unique_ptr<Group>(const GroupRequest& request)>& make) noexcept {
  return put_error(errors, [&] { *made = to_c(make(to_group_request({request.data, request.count}))); });
}

}  // namespace shard
