#include "shardtorch/c10d/c10d_group.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <cstring>
#include <thread>
#include <vector>

#include "libshard/core/error.h"
#include "shardtorch/c10d/without_sigpipe.h"

namespace shard {

namespace {

constexpr std::size_t kMessage = std::size_t{1} << 30;   // Well below the largest count of any transport.
constexpr std::chrono::milliseconds kPatience{300};      // For ranks to report a failure.
constexpr std::chrono::milliseconds kReportAfter{1000};  // A rank reports an operation that takes longer.

template <class Each>
void for_each_message(std::span<std::byte> piece, const Each& each) {
  for (std::size_t done = 0; done < piece.size(); done += kMessage) {
    each(piece.subspan(done, std::min(kMessage, piece.size() - done)));
  }
}

template <class Each>
void for_each_message(const at::Tensor& bytes, const Each& each) {
  constexpr auto kMost = static_cast<std::int64_t>(kMessage);
  for (std::int64_t done = 0; done < bytes.numel(); done += kMost) {
    each(bytes.narrow(0, done, std::min(kMost, bytes.numel() - done)));
  }
}

}  // namespace

void as_errors(const char* doing, const std::function<void()>& body) {
  try {
    body();
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    const auto* const torchs = dynamic_cast<const c10::Error*>(&error);
    const std::string_view text = torchs != nullptr ? torchs->what_without_backtrace() : error.what();
    throw Error(ErrorCode::kPeer, std::string("a rank died or does not respond, in ") + doing)
        .because(std::string(text.substr(0, text.find('\n'))));
  }
}

C10dGroup::C10dGroup(c10::intrusive_ptr<c10d::Backend> backend, std::string name, at::Device device,
                     std::chrono::milliseconds timeout, c10::intrusive_ptr<c10d::Store> store, FailureNews news)
    : backend_(std::move(backend)),
      rank_(backend_->getRank()),
      size_(backend_->getSize()),
      name_(std::move(name)),
      device_(device),
      timeout_(timeout),
      store_(std::move(store)) {
  if (store_ != nullptr && news == FailureNews::kByTimeout) attendance_.emplace(store_, rank_, size_);
}

at::Tensor C10dGroup::outgoing(std::span<const std::byte> bytes) const {
  // c10d does not write to the tensors that it sends, but its interface lacks const.
  const at::Tensor host = at::from_blob(const_cast<std::byte*>(bytes.data()), {static_cast<std::int64_t>(bytes.size())},
                                        at::TensorOptions(at::kByte));
  return device_.is_cpu() ? host : host.to(device_);
}

at::Tensor C10dGroup::incoming(std::span<std::byte> bytes) const {
  const auto count = static_cast<std::int64_t>(bytes.size());
  if (device_.is_cpu()) return at::from_blob(bytes.data(), {count}, at::TensorOptions(at::kByte));
  return at::empty({count}, at::TensorOptions(at::kByte).device(device_));
}

void C10dGroup::land(const at::Tensor& tensor, std::span<std::byte> bytes) const {
  if (device_.is_cpu() || bytes.empty()) return;  // The bytes arrived in place.
  at::from_blob(bytes.data(), {tensor.numel()}, at::TensorOptions(at::kByte)).copy_(tensor);
}

void C10dGroup::finish(const c10::intrusive_ptr<c10d::Work>& work) {
  if (attendance_) {
    const auto end = std::chrono::steady_clock::now() + std::min(kReportAfter, timeout_.load());
    while (!work->isCompleted() && std::chrono::steady_clock::now() < end) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // The pause of NCCL's own wait.
    }
    if (!work->isCompleted()) attendance_->report();
  }
  work->wait(timeout_);
}

void C10dGroup::report() {
  if (attendance_) attendance_->report();
}

void C10dGroup::finish_all(std::span<const c10::intrusive_ptr<c10d::Work>> works, std::span<const int> peers) {
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < works.size(); ++i) {
    if (works[i] == nullptr) continue;
    present_wait_.set(peers[i], begin);
    finish(works[i]);
  }
  present_wait_.clear();
}

void C10dGroup::run(const char* doing, const std::function<void()>& operation) {
  const std::scoped_lock lock(mutex_);
  const WithoutSigpipe in_this_thread;
  if (backend_ == nullptr) throw Error(ErrorCode::kPeer, "a rank died or stopped responding before").because(missing_);
  if (attendance_) attendance_->begin_next();
  try {
    as_errors(doing, operation);
  } catch (const Error& error) {
    close();  // Closes while the caller's buffers still exist. Other ranks then notice the failure.
    missing_ = find_missing();
    if (missing_.empty()) throw;
    missing_ += missing_.starts_with("ranks") ? " died or do not respond" : " died or does not respond";
    throw Error(error.code(), missing_ + ", in " + doing).because(error.why());
  }
}

std::string C10dGroup::find_missing() {
  if (attendance_) return attendance_->absent(kReportAfter + kPatience);
  return store_ == nullptr ? std::string() : missing_after_failure(store_, rank_, size_, kPatience);
}

void C10dGroup::barrier() {
  run("a barrier", [&] {
    c10d::BarrierOptions options;
    options.timeout = timeout_;
    finish(backend_->barrier(options));
  });
}

void C10dGroup::broadcast(std::span<std::byte> data, int root) {
  for_each_message(data, [&](std::span<std::byte> message) {
    const at::Tensor tensor = rank() == root ? outgoing(message) : incoming(message);
    broadcast(tensor, root);
    if (rank() != root) land(tensor, message);
  });
}

void C10dGroup::broadcast(const at::Tensor& bytes, int root) {
  run("a broadcast", [&] {
    for_each_message(bytes, [&](const at::Tensor& message) {
      std::vector<at::Tensor> tensors{message};
      c10d::BroadcastOptions options;
      options.rootRank = root;
      options.timeout = timeout_;
      finish(backend_->broadcast(tensors, options));
    });
    report();
  });
}

void C10dGroup::all_gather(std::span<const std::byte> own, std::span<std::byte> all) {
  const at::Tensor out = incoming(all);
  all_gather(outgoing(own), out);
  land(out, all);
}

void C10dGroup::all_gather(const at::Tensor& own, const at::Tensor& all) {
  if (own.numel() == 0) return;
  run("an all-gather", [&] {
    at::Tensor in = own, out = all;
    c10d::AllgatherOptions options;
    options.timeout = timeout_;
    finish(backend_->_allgather_base(out, in, options));
  });
}

void C10dGroup::exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) {
  const auto own = static_cast<std::size_t>(rank());
  if (!to[own].empty()) std::memcpy(from[own].data(), to[own].data(), to[own].size());
  std::vector<at::Tensor> sent, received;
  for (std::size_t i = 0; i < to.size(); ++i) {
    sent.push_back(outgoing(i == own ? std::span<const std::byte>() : to[i]));
    received.push_back(incoming(i == own ? std::span<std::byte>() : from[i]));
  }
  exchange(sent, received);
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (i != own) land(received[i], from[i]);
  }
}

void C10dGroup::exchange(std::span<const at::Tensor> to, std::span<const at::Tensor> from) {
  run("an exchange", [&] {
    const auto own = static_cast<std::size_t>(rank());
    if (to[own].numel() > 0) from[own].copy_(to[own]);
    std::vector<c10::intrusive_ptr<c10d::Work>> works;
    std::vector<int> peers;  // The peers of each element in `works`.
    // NCCL needs one group around sends and receives that depend on each other.
    if (backend_->supportsCoalescing()) backend_->startCoalescing();
    for (int i = 1; i < size(); ++i) {
      const int sender = (rank() + size() - i) % size(), receiver = (rank() + i) % size();
      for_each_message(from[static_cast<std::size_t>(sender)], [&](const at::Tensor& message) {
        std::vector<at::Tensor> tensors{message};
        works.push_back(backend_->recv(tensors, sender, 0));
        peers.push_back(sender);
      });
      for_each_message(to[static_cast<std::size_t>(receiver)], [&](const at::Tensor& message) {
        std::vector<at::Tensor> tensors{message};
        works.push_back(backend_->send(tensors, receiver, 0));
        peers.push_back(receiver);
      });
    }
    if (backend_->supportsCoalescing()) works = {backend_->endCoalescing()}, peers = {-1};
    finish_all(works, peers);
    report();
  });
}

void C10dGroup::all_reduce(const at::Tensor& tensor, c10d::ReduceOp how) {
  if (tensor.numel() == 0) return;
  run("an all-reduce", [&] {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = std::move(how);
    options.timeout = timeout_;
    finish(backend_->allreduce(tensors, options));
  });
}

void C10dGroup::reduce_scatter(const at::Tensor& own, const at::Tensor& whole, c10d::ReduceOp how) {
  if (own.numel() == 0) return;
  run("a reduce-scatter", [&] {
    at::Tensor out = own, in = whole;
    c10d::ReduceScatterOptions options;
    options.reduceOp = std::move(how);
    options.timeout = timeout_;
    finish(backend_->_reduce_scatter_base(out, in, options));
  });
}

c10::intrusive_ptr<c10d::Backend> C10dGroup::c10d_backend() const {
  const std::scoped_lock lock(mutex_);
  return backend_;
}

void C10dGroup::set_timeout(std::chrono::milliseconds timeout) { timeout_ = timeout; }

void C10dGroup::close() noexcept {
  const c10::intrusive_ptr<c10d::Backend> backend = std::move(backend_);
  if (backend == nullptr) return;
  try {
    backend->abort();
  } catch (const std::exception&) {
    return;  // For a backend that cannot abort, releasing it has the same effect.
  }
}

void C10dGroup::abort() noexcept {
  const std::scoped_lock lock(mutex_);
  const WithoutSigpipe in_this_thread;
  close();
}

}  // namespace shard
