#include "shardtorch/checkpoint/checkpoint.h"

#include "formats/registry.h"
#include "libshard/core/error.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"
#include "libshard/job/copy_job.h"
#include "libshard/ranks/collective_step.h"
#include "shardtorch/checkpoint/loading.h"
#include "shardtorch/checkpoint/saved_state.h"
#include "shardtorch/checkpoint/tensor_memory.h"
#include "shardtorch/sharded_tensor/agree.h"

namespace shard::checkpoint {

namespace {

/// A tensor's elements as a checkpoint has them: packed, in this host's memory. A copy only where they are not so.
at::Tensor on_host(const at::Tensor& tensor) {
  return tensor.detach().to(at::kCPU).resolve_conj().resolve_neg().contiguous();
}

/// The states of all ranks as an open checkpoint. Only this rank's own memory can be read.
class StateReader final : public Reader {
 public:
  StateReader(MergedState state, const OwnState& own, int rank)
      : catalog_(std::move(state.catalog)), rank_(rank), memory_(std::make_shared<TensorMemory>()) {
    for (const MergedState::Held& held : state.held) memory_->add(on_host(own.local[held.tensor][held.box]));
  }

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override {
    if (catalog_.files[index].rank == rank_) return memory_;
    throw Error(ErrorCode::kInvalidArgument, "another rank's memory cannot be read")
        .in_file(catalog_.files[index].path);
  }

 private:
  const Catalog catalog_;
  const int rank_;
  const std::shared_ptr<TensorMemory> memory_;
};

std::unique_ptr<StateReader> gather_states(Group& group, const StateDict& state) {
  OwnState own;
  const std::vector<Bytes> gathered = all_gather_or_throw(group, [&] {
    own = own_state(state);
    return to_bytes(own);
  });
  std::unique_ptr<StateReader> reader;
  collective_step(group, {}, [&](const std::stop_token&) {
    std::vector<RankState> ranks;
    ranks.reserve(gathered.size());
    for (const Bytes& bytes : gathered) ranks.push_back(rank_state(bytes));
    reader = std::make_unique<StateReader>(merge_states(ranks, group.rank()), own, group.rank());
  });
  return reader;
}

Group& member_group(const ProcessGroup& group) {
  if (group.is_member()) return group.group();
  throw Error(ErrorCode::kInvalidArgument, "this process is not a member of the group " + group.name());
}

/// What all ranks must ask for alike.
std::string request(const std::string& path, const SaveOptions& options) {
  return options.format + (options.force ? ", force" : "") + (options.sync ? "" : ", no sync") + ": " + path;
}

}  // namespace

void save(const StateDict& state, const std::string& path, ProcessGroupPtr group, const SaveOptions& options) {
  group = group_or_default(std::move(group));
  Group& ranks = member_group(*group);
  expect_same(ranks, request(path, options), ErrorCode::kInvalidArgument, "ranks were asked to save differently");
  const Format& format = format_named(options.format);
  const std::unique_ptr<StateReader> reader = gather_states(ranks, state);
  const WriteOptions write{.base_name = base_name(path)};
  CopyJob job;
  job.reader = reader.get();
  job.selection = select(reader->catalog(), {});
  job.layout = KeepLayout();
  job.traits = traits_of(format, write);
  job.make_writer = [&](const Catalog&) { return format.make_writer(write); };
  std::unique_ptr<OutputStore> output;
  collective_step(ranks, {}, [&](const std::stop_token&) {
    output = local_output(*options.disk, path, {}, {.force = options.force, .sync = options.sync});
  });
  job.threads = options.threads;
  job.max_memory_bytes = options.max_memory_bytes;
  job.by_owner = true;
  Progress progress;
  run_copy_job(*output, ranks, job, progress, {});
}

LoadResult load(StateDict& state, const std::string& path, ProcessGroupPtr group, const LoadOptions& options) {
  group = group_or_default(std::move(group));
  Group& ranks = member_group(*group);
  Loading loading(state, ranks.rank(), options);
  collective_step(ranks, {}, [&](const std::stop_token&) { loading.prepare(path); });
  collective_step(ranks, {}, [&](const std::stop_token& stop) { loading.read(stop); });
  return loading.finish();
}

}  // namespace shard::checkpoint
