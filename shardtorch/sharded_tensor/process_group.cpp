#include "shardtorch/sharded_tensor/process_group.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <utility>

#include "shardtorch/c10d/c10d_group.h"
#include "shardtorch/errors.h"
#include "shardtorch/sharded_tensor/host_link.h"

namespace shard {

namespace {

std::vector<int> all_ranks(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

std::string joined(const std::vector<int>& ranks) { return c10::Join(",", ranks); }

/// A world that is a default, and the names that its groups have had. All members count in the same way, so that they
/// agree on names.
class Default {
 public:
  explicit Default(std::shared_ptr<World> world)
      : world_(std::move(world)), group_(make_group("default_pg", all_ranks(world_->size()), {})) {}
  /// `world` creates groups of some ranks; null: none can be created.
  Default(ProcessGroupPtr group, std::shared_ptr<World> world) : world_(std::move(world)), group_(std::move(group)) {}

  const ProcessGroupPtr& group() const { return group_; }
  c10::intrusive_ptr<c10d::Store> store() const { return world_ != nullptr ? world_->store() : nullptr; }

  ProcessGroupPtr make_numbered_group(std::vector<int> ranks, const NewGroupOptions& options) {
    const std::string name = "group-" + std::to_string(count());
    return make_group(name, std::move(ranks), options);
  }
  /// Ranks that are not members do not count this group. Its name differs from those of groups of other ranks.
  ProcessGroupPtr make_local_group(std::vector<int> ranks, const NewGroupOptions& options) {
    const std::string name = "ranks-" + joined(ranks);
    return make_group(name + "-" + std::to_string(count_locally(name)), std::move(ranks), options);
  }
  void check_ranks(const std::vector<int>& ranks) const {
    SHARD_CHECK_VALUE(!ranks.empty(), "a group needs a rank");
    SHARD_CHECK_VALUE(ranks.front() >= 0 && ranks.back() < group_->size(),
                      "the ranks of a group should be within 0 to ", group_->size() - 1, ", found ", joined(ranks));
    SHARD_CHECK_VALUE(std::ranges::adjacent_find(ranks) == ranks.end(), "a rank is named twice: ", joined(ranks));
  }

 private:
  int count() {
    const std::scoped_lock lock(mutex_);
    return ++made_;
  }
  int count_locally(const std::string& name) {
    const std::scoped_lock lock(mutex_);
    return ++made_locally_[name];
  }
  ProcessGroupPtr make_group(const std::string& name, std::vector<int> ranks, const NewGroupOptions& options) const {
    SHARD_CHECK(world_ != nullptr,
                "cannot make a group: the default group was wrapped without a store for the rendezvous");
    const bool is_member = std::ranges::find(ranks, world_->rank()) != ranks.end();
    auto group = is_member ? world_->make_group(name, ranks, options.backend) : nullptr;
    if (group != nullptr && options.timeout.has_value()) group->set_timeout(*options.timeout);
    return std::make_shared<ProcessGroup>(std::move(group), std::move(ranks), name);
  }

  std::shared_ptr<World> world_;
  std::mutex mutex_;
  int made_ = 0;
  std::map<std::string, int> made_locally_;
  ProcessGroupPtr group_;
};

using DefaultPtr = std::shared_ptr<Default>;

/// The process's default and its lock. Torch's API has one default per process. All other code receives a group as an
/// argument.
struct OfProcess {
  std::mutex mutex;
  DefaultPtr current;
};
OfProcess& of_process() {
  static OfProcess instance;
  return instance;
}
DefaultPtr& of_thread() {
  thread_local DefaultPtr instance;
  return instance;
}

DefaultPtr default_of_process() {
  const std::scoped_lock lock(of_process().mutex);
  return of_process().current;
}

DefaultPtr current_default() { return of_thread() != nullptr ? of_thread() : default_of_process(); }

DefaultPtr need_default() {
  DefaultPtr current = current_default();
  SHARD_CHECK_VALUE(current != nullptr,
                    "Default process group has not been initialized, please make sure to call init_process_group.");
  return current;
}

void check_not_set(const DefaultPtr& current) {
  SHARD_CHECK(current == nullptr, "trying to initialize the default process group twice!");
}

}  // namespace

ProcessGroup::ProcessGroup(std::shared_ptr<Group> group, std::vector<int> ranks, std::string name)
    : group_(std::move(group)),
      c10d_(dynamic_cast<C10dGroup*>(group_.get())),
      ranks_(std::move(ranks)),
      name_(std::move(name)) {
  int member = 0;
  for (const int rank : ranks_) group_ranks_.emplace(rank, member++);
}

ProcessGroup::~ProcessGroup() = default;

Group& ProcessGroup::member_group() const {
  SHARD_CHECK_VALUE(is_member(), "this process is not a member of the group ", name_);
  return *group_;
}

int ProcessGroup::global_rank_of(int group_rank) const {
  SHARD_CHECK_VALUE(group_rank >= 0 && static_cast<std::size_t>(group_rank) < ranks_.size(), "Group rank ", group_rank,
                    " is not part of group ", name_, " of ", ranks_.size(), " ranks");
  return ranks_[static_cast<std::size_t>(group_rank)];
}

int ProcessGroup::group_rank_of(int global_rank) const {
  const auto member = group_ranks_.find(global_rank);
  return member == group_ranks_.end() ? -1 : member->second;
}

std::string_view ProcessGroup::backend() const { return group_ != nullptr ? group_->backend() : "none"; }

at::Device ProcessGroup::preferred_device() const { return c10d_ != nullptr ? c10d_->device() : at::Device(at::kCPU); }

c10::intrusive_ptr<c10d::Backend> ProcessGroup::c10d_backend() const {
  return c10d_ != nullptr ? c10d_->c10d_backend() : nullptr;
}

void ProcessGroup::set_timeout(std::chrono::milliseconds timeout) const { group_->set_timeout(timeout); }

WireBytes ProcessGroup::wire_bytes() const { return {direct_bytes_, staged_bytes_}; }

void ProcessGroup::count_wire_bytes(const at::Tensor& tensor, at::ScalarType travel_as) const {
  const bool is_there = tensor.device() == preferred_device();
  (is_there ? direct_bytes_ : staged_bytes_) += tensor.numel() * static_cast<std::int64_t>(c10::elementSize(travel_as));
}

HostLink* ProcessGroup::host_link() const {
  if (!link_.has_value()) {
    const bool is_possible = c10d_ != nullptr && preferred_device().is_cpu() && size() > 1;
    link_ = is_possible ? HostLink::open(*group_) : nullptr;
  }
  return link_->get();
}

at::Device current_cuda_device() { return c10::impl::getDeviceGuardImpl(at::kCUDA)->getDevice(); }

ProcessGroupPtr wrap_process_group(c10::intrusive_ptr<c10d::Backend> backend, std::string name, at::Device device,
                                   std::vector<int> ranks) {
  if (ranks.empty()) ranks = all_ranks(backend->getSize());
  SHARD_CHECK_VALUE(std::ssize(ranks) == backend->getSize(), "group ", name, " has ", backend->getSize(),
                    " ranks, but ", ranks.size(), " are named");
  auto group = std::make_shared<C10dGroup>(backend, backend->getBackendName(), device, kBackendDefaultTimeout);
  return std::make_shared<ProcessGroup>(std::move(group), std::move(ranks), std::move(name));
}

namespace {

ProcessGroupPtr set_default_of_process(DefaultPtr made) {
  const std::scoped_lock lock(of_process().mutex);
  check_not_set(of_process().current);
  of_process().current = std::move(made);
  return of_process().current->group();
}

}  // namespace

ProcessGroupPtr init_process_group(std::shared_ptr<World> world) {
  check_not_set(default_of_process());
  // Waits for all ranks without holding the lock.
  return set_default_of_process(std::make_shared<Default>(std::move(world)));
}

ProcessGroupPtr init_process_group(ProcessGroupPtr group, c10::intrusive_ptr<c10d::Store> store) {
  check_not_set(default_of_process());
  SHARD_CHECK_VALUE(group->is_member() && group->global_ranks() == all_ranks(group->size()), "group ", group->name(),
                    " cannot be the default: its ranks are ", joined(group->global_ranks()));
  std::shared_ptr<World> world;
  if (store != nullptr) {
    const std::string backend = group->backend() == "nccl" ? "nccl" : "gloo";
    world = make_c10d_world(backend, std::move(store), group->rank(), group->size(), InitOptions().timeout);
  }
  return set_default_of_process(std::make_shared<Default>(std::move(group), std::move(world)));
}

c10::intrusive_ptr<c10d::Store> default_store() {
  auto store = need_default()->store();
  SHARD_CHECK(store != nullptr, "the ranks of the default group did not connect through a store");
  return store;
}

ProcessGroupPtr init_thread_process_group(std::shared_ptr<World> world) {
  check_not_set(of_thread());
  of_thread() = std::make_shared<Default>(std::move(world));
  return of_thread()->group();
}

void destroy_process_group() {
  if (of_thread() != nullptr) {
    of_thread().reset();
    return;
  }
  DefaultPtr dropped;  // Destroyed after the lock is released, because destroying a group takes time.
  const std::scoped_lock lock(of_process().mutex);
  dropped.swap(of_process().current);
}

bool has_default_group() { return current_default() != nullptr; }

ProcessGroupPtr default_group() { return need_default()->group(); }

ProcessGroupPtr group_or_default(ProcessGroupPtr group) {
  return group != nullptr ? std::move(group) : default_group();
}

ProcessGroupPtr new_group(std::vector<int> ranks, const NewGroupOptions& options) {
  const DefaultPtr current = need_default();
  std::ranges::sort(ranks);
  current->check_ranks(ranks);
  return options.local_synchronization ? current->make_local_group(std::move(ranks), options)
                                       : current->make_numbered_group(std::move(ranks), options);
}

}  // namespace shard
