/// \file
/// A Group over any c10d process group. Everything but reductions travels as bytes (uint8), which every backend takes.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Backend.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include "libshard/ranks/current_wait.h"
#include "libshard/ranks/group.h"
#include "libshard/ranks/launch.h"

namespace shard {

class C10dGroup final : public Group {
 public:
  /// `device` is the backend's device for tensors: on the CPU bytes move in place, otherwise through copies on the
  /// device.
  C10dGroup(c10::intrusive_ptr<c10d::Backend> backend, std::string name, at::Device device,
            std::chrono::milliseconds timeout);

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
  /// Null once the group is broken. Waits for a pending operation of this rank.
  c10::intrusive_ptr<c10d::Backend> c10d_backend() const;

  // The same operations on tensors, which are contiguous, on `device()` and of bytes: no copy elsewhere is made.
  void broadcast(const at::Tensor& bytes, int root);
  void all_gather(const at::Tensor& own, const at::Tensor& all);
  /// Also copies to[own rank] into from[own rank].
  void exchange(std::span<const at::Tensor> to, std::span<const at::Tensor> from);
  // Reductions of contiguous tensors there, of a dtype that the backend reduces.
  void all_reduce(const at::Tensor& tensor, c10d::ReduceOp how);
  /// Part i of `whole`, summed over the ranks, becomes rank i's `own`.
  void reduce_scatter(const at::Tensor& own, const at::Tensor& whole, c10d::ReduceOp how);

 private:
  /// Runs an operation, after whose failure the group is broken.
  void run(const char* doing, const std::function<void()>& operation);
  /// Closes the connections: so the others know, and nothing arrives any more.
  void close() noexcept;
  at::Tensor outgoing(std::span<const std::byte> bytes) const;
  at::Tensor incoming(std::span<std::byte> bytes) const;
  void land(const at::Tensor& tensor, std::span<std::byte> bytes) const;
  void finish(const c10::intrusive_ptr<c10d::Work>& work) const;
  /// Several, of which each is waited for because of one rank; -1: of all.
  void finish_all(std::span<const c10::intrusive_ptr<c10d::Work>> works, std::span<const int> peers);

  CurrentWait present_wait_;
  mutable std::mutex mutex_;                   ///< Held by operations.
  c10::intrusive_ptr<c10d::Backend> backend_;  ///< Null once the group is broken.
  int rank_, size_;
  std::string name_;
  at::Device device_;
  std::atomic<std::chrono::milliseconds> timeout_;
};

/// The store through which the ranks of a launch connect: torchrun's, or a TCP store of rank 0. Keys are the job's own.
/// \throws Error kPeer, kInvalidArgument  several hosts and no address
c10::intrusive_ptr<c10d::Store> make_store(const Launch& launch, std::chrono::milliseconds timeout);

/// Runs `body`; errors of torch and Gloo become Error kPeer without their backtraces.
void as_errors(const char* doing, const std::function<void()>& body);

}  // namespace shard
