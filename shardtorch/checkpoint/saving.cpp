#include "shardtorch/checkpoint/saving.h"

#include <ATen/ATen.h>

#include <utility>
#include <vector>

#include "formats/registry.h"
#include "libshard/core/error.h"
#include "libshard/io/local_output.h"
#include "libshard/job/copy_job.h"
#include "libshard/ranks/collective_step.h"
#include "shardtorch/checkpoint/saved_state.h"
#include "shardtorch/checkpoint/tensor_memory.h"
#include "shardtorch/sharded_tensor/agree.h"

namespace shard::checkpoint {

/// The states of all ranks as an open checkpoint. Only this rank's own memory is readable.
class StateReader final : public Reader {
 public:
  StateReader(MergedState state, const OwnState& own, int rank, OnProgress on_progress)
      : catalog_(std::move(state.catalog)), rank_(rank), on_progress_(std::move(on_progress)) {
    for (const MergedState::Held& held : state.held) tensors_.push_back(own.local[held.tensor][held.box].detach());
    make_memory();
  }

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override {
    if (catalog_.files[index].rank == rank_) return memory_;
    throw Error(ErrorCode::kInvalidArgument, "another rank's memory cannot be read")
        .in_file(catalog_.files[index].path);
  }

  void wait_for_devices() const { memory_->wait_for_devices(); }
  void stage(const std::stop_token& stop) {
    const at::NoGradGuard no_grad;
    for (at::Tensor& tensor : tensors_) {
      check_stop(stop);
      const auto options = at::TensorOptions(tensor.scalar_type()).pinned_memory(tensor.is_cuda());
      tensor = at::empty(tensor.sizes(), options).copy_(tensor);
    }
    make_memory();
  }

 private:
  void make_memory() {
    memory_ = std::make_shared<TensorMemory>(on_progress_);
    for (const at::Tensor& tensor : tensors_) memory_->add(tensor);
  }

  const Catalog catalog_;
  const int rank_;
  const OnProgress on_progress_;
  std::vector<at::Tensor> tensors_;  ///< The bytes that this rank writes, in the order of its file.
  std::shared_ptr<TensorMemory> memory_;
};

namespace {

/// The arguments that must be the same on all ranks.
std::string request(const std::string& path, const SaveOptions& options) {
  return options.format + (options.force ? ", force" : "") + (options.sync ? "" : ", no sync") + ": " + path;
}

}  // namespace

Saving::Saving(const ProcessGroup& members, const StateDict& state, std::string path, const SaveOptions& options)
    : path_(std::move(path)), options_(options) {
  Group& group = members.group();
  expect_same(group, request(path_, options), ErrorCode::kInvalidArgument, "ranks called save with different options");
  const bool keeps_replicas = traits_of(format_named(options.format), {}).keeps_replicas;
  OwnState own;
  const std::vector<Bytes> gathered = all_gather_or_throw(group, [&] {
    own = own_state(state, members);
    return to_bytes(own);
  });
  collective_step(group, {.stop = options.stop}, [&](const std::stop_token&) {
    std::vector<RankState> ranks;
    ranks.reserve(gathered.size());
    for (const Bytes& bytes : gathered) ranks.push_back(rank_state(bytes));
    const bool keeps_shardings = keeps_replicas && are_dtensors(ranks);
    if (keeps_shardings) rank_files_ = RankFiles::kDTensor;
    const MergeOptions merge{.keeps_replicas = keeps_replicas, .keeps_shardings = keeps_shardings};
    reader_ =
        std::make_unique<StateReader>(merge_states(ranks, group.rank(), merge), own, group.rank(), options.on_progress);
  });
}

Saving::~Saving() = default;

std::unique_ptr<OutputStore> Saving::open_output() const {
  return local_output(*options_.disk, path_, {}, {.force = options_.force, .sync = options_.sync});
}

void Saving::check_destination(Group& group, const std::stop_token& stop) const {
  collective_step(group, {.stop = stop}, [&](const std::stop_token&) { open_output(); });
}

void Saving::stage(Group& group, const std::stop_token& stop) {
  collective_step(group, {.stop = stop}, [&](const std::stop_token& token) { reader_->stage(token); });
}

void Saving::write(Group& group, const std::stop_token& stop) const {
  const Format& format = format_named(options_.format);
  const WriteOptions write{.rank_files = rank_files_};
  CopyJob job;
  job.reader = reader_.get();
  job.target = selected_target(*reader_, select(reader_->catalog(), {}), KeepLayout(), traits_of(format, write));
  job.make_writer = [&](const Catalog&) { return writer_of(format, write); };
  job.threads = options_.threads;
  job.max_memory_bytes = options_.max_memory_bytes;
  job.topology.by_owner = true;
  job.stop = stop;
  std::unique_ptr<OutputStore> output;
  collective_step(group, {.stop = stop}, [&](const std::stop_token&) {
    reader_->wait_for_devices();
    output = open_output();
  });
  Progress progress;
  run_copy_job(*output, group, job, progress, {});
}

}  // namespace shard::checkpoint
