#include "apps/shardctl/target/named_inputs.h"

#include "libshard/map/builtin_maps.h"

namespace shard::app {

std::vector<std::string> named_inputs(const Session& session, const Request& options) {
  std::vector<std::string> inputs;
  const WriteRequest& target = options.target;
  for (const std::string& path : {target.layout.like, target.layout.layout, options.source.layout, options.like,
                                  options.against, session.common.config, session.common.log_file}) {
    if (!path.empty()) inputs.push_back(path);
  }
  for (const std::string& map : {options.source.map, target.map}) {
    if (!map.empty() && find_builtin_map(map) == nullptr) inputs.push_back(map);
  }
  return inputs;
}

}  // namespace shard::app
