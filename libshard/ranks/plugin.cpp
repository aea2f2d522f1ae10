#include "libshard/ranks/plugin.h"

#include "libshard/ranks/wire.h"

namespace shard {

Bytes to_bytes(const GroupRequest& request) {
  const Launch& launch = request.launch;
  WireWriter writer;
  writer.number(request.timeout.count());
  writer.number(static_cast<std::int64_t>(launch.launcher));
  for (const int number : {launch.rank, launch.size, launch.local_rank, launch.local_size, launch.port}) {
    writer.number(number);
  }
  writer.number(launch.agent_hosts_store ? 1 : 0);
  for (const std::string* text :
       {&launch.address, &launch.job, &launch.token, &launch.session_folder, &launch.error_file}) {
    writer.text(*text);
  }
  return writer.take();
}

GroupRequest to_group_request(std::span<const std::byte> bytes) {
  WireReader reader(bytes);
  GroupRequest request;
  Launch& launch = request.launch;
  request.timeout = std::chrono::milliseconds(reader.number());
  launch.launcher = static_cast<Launcher>(reader.number_below(static_cast<std::int64_t>(Launcher::kSlurm) + 1));
  for (int* const number : {&launch.rank, &launch.size, &launch.local_rank, &launch.local_size, &launch.port}) {
    *number = static_cast<int>(reader.number_below(kMaxWorld + 1));
  }
  launch.agent_hosts_store = reader.number_below(2) != 0;
  for (std::string* const text :
       {&launch.address, &launch.job, &launch.token, &launch.session_folder, &launch.error_file}) {
    *text = reader.text();
  }
  return request;
}

bool make_c_group(ConstBytes request, CGroup* made, const ErrorSink* errors,
                  const std::function<std::unique_ptr<Group>(const GroupRequest& request)>& make) noexcept {
  return put_error(errors, [&] { *made = to_c(make(to_group_request({request.data, request.count}))); });
}

}  // namespace shard
