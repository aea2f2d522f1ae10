/// \file
/// A Group over any c10d process group. All operations except reductions transfer bytes (uint8), which every backend
/// supports.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libshard/ranks/current_wait.h"
#include "libshard/ranks/group.h"
#include "libshard/ranks/launch.h"
#include "shardtorch/c10d/attendance.h"

namespace shard {

/// How ranks learn that an operation of another rank failed.
enum class FailureNews {
  kAtOnce,     ///< The backend closes connections.
  kByTimeout,  ///< By their own timeouts, because the backend does not notify them.
};

class C10dGroup final : public Group {
 public:
  /// `device` is the backend's device for tensors. On the CPU, bytes are transferred in place; for other devices,
  /// through copies there. `store` is one that only this group uses, or null: errors then name no rank
  /// (attendance.h).
  C10dGroup(c10::intrusive_ptr<c10d::Backend> backend, std::string name, at::Device device,
            std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Store> store = nullptr,
            FailureNews news = FailureNews::kAtOnce);

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string_view backend() const override { return name_; }
  void barrier() override;
  void broadcast(std::span<std::byte> data, int root) override;
  void all_gather(std::span<const std::byte> own, std::span<std::byte> all) override;
  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override;
  std::optional<Wait> waits_for() const override { return present_wait_.get(); }
  void set_timeout(std::chrono::milliseconds timeout) override;
  /// Waits for a pending operation of this rank.
  void abort() noexcept override;

  /// The backend's device for tensors.
  at::Device device() const { return device_; }
  /// The backend, or null once the group is broken. Waits for a pending operation of this rank.
  c10::intrusive_ptr<c10d::Backend> c10d_backend() const;

  // The same operations on tensors. They must be contiguous, on `device()`, and of bytes, so no copy is needed.
  void broadcast(const at::Tensor& bytes, int root);
  void all_gather(const at::Tensor& own, const at::Tensor& all);
  /// Also copies to[own rank] into from[own rank].
  void exchange(std::span<const at::Tensor> to, std::span<const at::Tensor> from);
  // Reductions of contiguous tensors on `device()`. The backend must support the dtype.
  void all_reduce(const at::Tensor& tensor, c10d::ReduceOp how);
  /// Sums `whole` over the ranks. Part i becomes rank i's `own`.
  void reduce_scatter(const at::Tensor& own, const at::Tensor& whole, c10d::ReduceOp how);

 private:
  /// Runs an operation. If it fails, the group is broken. \throws Error kPeer  names the missing ranks, if known.
  void run(const char* doing, const std::function<void()>& operation);
  /// The ranks that are missing in the operation that failed; empty if unknown.
  std::string find_missing();
  /// Is called after an operation that needs only some of the ranks.
  void report();
  /// Closes the connections, so that the other ranks notice and no more data arrives.
  void close() noexcept;
  at::Tensor outgoing(std::span<const std::byte> bytes) const;
  at::Tensor incoming(std::span<std::byte> bytes) const;
  void land(const at::Tensor& tensor, std::span<std::byte> bytes) const;
  /// Waits for an operation. Reports to the store if it takes long.
  void finish(const c10::intrusive_ptr<c10d::Work>& work);
  /// Waits for several operations, each of which depends on one rank; -1: on all.
  void finish_all(std::span<const c10::intrusive_ptr<c10d::Work>> works, std::span<const int> peers);

  CurrentWait present_wait_;
  mutable std::mutex mutex_;                   ///< Held by operations.
  c10::intrusive_ptr<c10d::Backend> backend_;  ///< Null once the group is broken.
  int rank_, size_;
  std::string name_;
  at::Device device_;
  std::atomic<std::chrono::milliseconds> timeout_;
  c10::intrusive_ptr<c10d::Store> store_;
  std::optional<Attendance> attendance_;  ///< If ranks learn of failures by timeouts.
  std::string missing_;                   ///< The ranks that were missing when the group broke; empty if unknown.
};

/// The store through which the ranks of a launch connect: torchrun's, or a TCP store on rank 0. The keys are this
/// job's.
/// \throws Error kPeer, kInvalidArgument  several hosts and no address
c10::intrusive_ptr<c10d::Store> make_store(const Launch& launch, std::chrono::milliseconds timeout);

/// Runs `body`. Converts errors of torch and Gloo to Error kPeer and removes their backtraces.
void as_errors(const char* doing, const std::function<void()>& body);

}  // namespace shard
