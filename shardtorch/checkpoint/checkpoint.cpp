#include "shardtorch/checkpoint/checkpoint.h"

#include <utility>

#include "libshard/ranks/collective_step.h"
#include "shardtorch/checkpoint/loading.h"
#include "shardtorch/checkpoint/saving.h"

namespace shard::checkpoint {

void save(const StateDict& state, const std::string& path, ProcessGroupPtr group, const SaveOptions& options) {
  group = group_or_default(std::move(group));
  Group& ranks = member_group(*group);
  Saving(*group, state, path, options).write(ranks, options.stop);
}

LoadResult load(StateDict& state, const std::string& path, ProcessGroupPtr group, const LoadOptions& options) {
  group = group_or_default(std::move(group));
  Group& ranks = member_group(*group);
  Loading loading(state, ranks.rank(), options);
  collective_step(ranks, {.stop = options.stop}, [&](const std::stop_token&) { loading.prepare(path); });
  collective_step(ranks, {.stop = options.stop}, [&](const std::stop_token& stop) { loading.read(stop); });
  return loading.finish();
}

LoadResult load(torch::nn::Module& module, const std::string& path, const std::string& prefix, ProcessGroupPtr group,
                const LoadOptions& options) {
  StateDict state = state_dict(module);
  if (prefix.empty()) return load(state, path, std::move(group), options);
  LoadOptions part = options;
  part.rename = [&](const std::string& name) {
    std::string stored = c10::str(prefix, '.', name);
    return options.rename ? options.rename(stored) : stored;
  };
  LoadResult result = load(state, path, std::move(group), part);
  std::erase_if(result.unexpected, [&](const std::string& name) { return !name.starts_with(prefix + '.'); });
  return result;
}

}  // namespace shard::checkpoint
