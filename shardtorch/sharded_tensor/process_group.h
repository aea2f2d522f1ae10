/// \file
/// The ranks that share a tensor: a Group (libshard/ranks) that knows the world ranks of its members.
///
/// Every process has one default group, the world. A process that is not a member of a group also has an object for it,
/// with rank -1 and size -1.
#pragma once

#include <ATen/core/Tensor.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>
#include <unordered_map>
#include <vector>

#include "libshard/ranks/group.h"

namespace shard {

class C10dGroup;
class HostLink;

/// Bytes of tensors that a rank sent or received in collectives: those of collectives.h, and those that transfer shards
/// (gather, reshard, shard_tensor). Bytes that stay on the rank do not count.
struct WireBytes {
  std::int64_t direct = 0;  ///< Transferred from and to tensors on the group's device.
  std::int64_t staged = 0;  ///< Copied through that device or through host memory, for a tensor elsewhere.
};

/// Threads: as Group.
class ProcessGroup {
 public:
  /// `group` is null in a process that is not a member. `ranks[i]` is the world's rank of member i.
  ProcessGroup(std::shared_ptr<Group> group, std::vector<int> ranks, std::string name);
  ~ProcessGroup();
  ProcessGroup(const ProcessGroup&) = delete;
  ProcessGroup& operator=(const ProcessGroup&) = delete;

  int rank() const { return group_ ? group_->rank() : -1; }  ///< Rank in this group; -1 for a process outside.
  int size() const { return group_ ? group_->size() : -1; }  ///< -1 for a process outside.
  bool is_member() const { return group_ != nullptr; }
  const std::vector<int>& global_ranks() const { return ranks_; }
  /// The world's rank of a member. \throws c10::ValueError  no such member.
  int global_rank_of(int group_rank) const;
  /// The group rank of a rank of the world; -1 if it is not a member.
  int group_rank_of(int global_rank) const;
  const std::string& name() const { return name_; }  ///< "default_pg", "group-1", ...
  std::string_view backend() const;                  ///< "gloo", "nccl", "threads", ...; "none" for a process outside.
  /// The device of collectives' tensors: the group's CUDA device for nccl, otherwise the CPU. Other tensors are copied
  /// through it.
  at::Device preferred_device() const;
  /// A Group of bytes; collectives.h has collectives of tensors. \pre is_member()
  Group& group() const { return *group_; }
  /// Does the same in functions that processes outside may call by mistake. \throws c10::ValueError  it is outside.
  Group& member_group() const;
  /// The c10d backend, for functions of c10d that this library lacks. Null for ranks that are threads, for a process
  /// outside, and after a rank died. Its operations and those of this group must be in one order on all ranks.
  c10::intrusive_ptr<c10d::Backend> c10d_backend() const;
  /// The group as c10d's; null in the same cases, except after a rank died.
  C10dGroup* c10d() const { return c10d_; }
  /// Returns once all members have called it. \throws Error kPeer \pre is_member()
  void barrier() const { group_->barrier(); }
  /// Sets the timeout of later operations of only this group. \pre is_member()
  void set_timeout(std::chrono::milliseconds timeout) const;
  /// The traffic of collectives of tensors on this rank since the group was created.
  WireBytes wire_bytes() const;
  /// Adds the bytes of one tensor, by dtype. Not for programs.
  void count_wire_bytes(const at::Tensor& tensor, at::ScalarType travel_as) const;
  /// Memory that the members share; null unless they are processes on one host whose transport uses the CPU. The first
  /// call is a collective. Not for programs. \pre is_member()
  HostLink* host_link() const;

 private:
  std::shared_ptr<Group> group_;
  C10dGroup* c10d_;
  std::vector<int> ranks_;
  std::unordered_map<int, int> group_ranks_;  ///< By rank of the world.
  std::string name_;
  mutable std::atomic<std::int64_t> direct_bytes_ = 0, staged_bytes_ = 0;
  mutable std::optional<std::unique_ptr<HostLink>> link_;  ///< Nothing: not tried yet.
};

using ProcessGroupPtr = std::shared_ptr<ProcessGroup>;

/// \throws c10::Error  this program has no CUDA.
at::Device current_cuda_device();

/// Creates groups of some ranks of a program's world.
class World {
 public:
  virtual ~World() = default;
  virtual int rank() const = 0;
  virtual int size() const = 0;
  /// A Group of these ranks, only for its members. All members pass the same name and backend ("": the world's own).
  /// \throws c10::ValueError  this rank is not a member; c10::Error  the backend is not available.
  virtual std::shared_ptr<Group> make_group(const std::string& name, const std::vector<int>& ranks,
                                            const std::string& backend) = 0;
  /// The store through which the world's ranks connected; null if there is none.
  virtual c10::intrusive_ptr<c10d::Store> store() const { return nullptr; }
};

/// The world of processes that connect through a store. All ranks call it. Backend "gloo", or "nccl" if
/// libshard_nccl.so and GPUs are available (set the CUDA device first). Its groups may use either. One store may serve
/// several worlds, one after another. Threads: `make_group`, as Group. Ranks that are threads of one process should use
/// make_thread_worlds, because torch 2.11's flight recorder exists once per process and has a race if several Gloo
/// groups enqueue at once, unless TORCH_FR_BUFFER_SIZE=0 is set. The first group over Gloo sets it if it is not set.
/// \throws c10::Error  the backend is not available; Error kPeer  a rank does not connect.
std::shared_ptr<World> make_c10d_world(const std::string& backend, c10::intrusive_ptr<c10d::Store> store, int rank,
                                       int size, std::chrono::milliseconds timeout);

/// The worlds of threads of one process, by rank; no sockets. The only backend is "threads".
std::vector<std::shared_ptr<World>> make_thread_worlds(int size);

/// Wraps the program's own process group. Its operations time out after the time set by `set_timeout`, initially 30
/// minutes. Ownership: shared. `ranks` may be empty: all ranks of the world in order. Its ranks must make the same
/// calls of this function before they use the results.
ProcessGroupPtr wrap_process_group(c10::intrusive_ptr<c10d::Backend> backend, std::string name, at::Device device,
                                   std::vector<int> ranks = {});

struct InitOptions {
  std::chrono::milliseconds timeout = std::chrono::minutes(5);  ///< For the rendezvous and each operation.
};
/// The only call needed by a program that a launcher started (torchrun, mpirun, srun; docs/ranks.md), or that runs as
/// one process. It finds its rank in the environment, connects to the others through a store and makes the world the
/// default group. With "nccl", the current CUDA device becomes the one with the rank's number on its host. All ranks
/// call it.
/// \throws Error kInvalidArgument  the environment contradicts itself; kPeer  a rank does not connect; c10::Error  the
///   backend is not available, or there is a default group already.
ProcessGroupPtr init_process_group(const std::string& backend = "gloo", const InitOptions& options = {});

/// Makes the program's own group (wrap_process_group) the default group. Its ranks are the world. Without a `store`,
/// `new_group` throws. With a store, which no other world may use, all ranks connect now.
/// \throws c10::ValueError  the group's ranks are not 0, 1, ... in this order; c10::Error  there is a default group
///   already.
ProcessGroupPtr init_process_group(ProcessGroupPtr group, c10::intrusive_ptr<c10d::Store> store = nullptr);

/// Makes `world` the process's default group once all ranks have called this. Other threads see no default until then.
/// \throws c10::Error  there is one already.
ProcessGroupPtr init_process_group(std::shared_ptr<World> world);
/// Does the same only for the calling thread (ranks as threads). Its default group hides the process's.
ProcessGroupPtr init_thread_process_group(std::shared_ptr<World> world);
/// Removes the calling thread's default group, or else the process's, and the groups created from it. Tensors that use
/// them keep them alive. Does nothing if there is none.
void destroy_process_group();

bool has_default_group();
/// The default group. \throws c10::ValueError  "Default process group has not been initialized, please make sure to
/// call init_process_group."
ProcessGroupPtr default_group();
/// `group`, or the default group if it is null.
ProcessGroupPtr group_or_default(ProcessGroupPtr group);

/// The store of the world's ranks, for other agreements (init_rpc). Use keys with your own prefix.
/// \throws c10::Error  there is none: threads, or a wrapped group without a store.
c10::intrusive_ptr<c10d::Store> default_store();

struct NewGroupOptions {
  /// Empty: the world's backend. "gloo" in a world of NCCL creates a group for shards on the CPU.
  std::string backend{};
  std::optional<std::chrono::milliseconds> timeout{};  ///< The timeout of the group's operations; nothing: the world's.
  bool local_synchronization = false;  ///< True: only the members call new_group; false: all ranks of the world do.
};
/// Creates a group of some ranks of the world, which are its members in ascending order. All callers must create their
/// groups in the same order.
/// \throws c10::ValueError  no ranks, ranks outside the world, or repeated ranks; c10::Error  on members: the backend
///   is not available.
ProcessGroupPtr new_group(std::vector<int> ranks, const NewGroupOptions& options = {});

}  // namespace shard
