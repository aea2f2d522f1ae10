// DeviceLink over NCCL, which is loaded on demand, so that a job without it needs no NCCL on the machine.
#include <fmt/format.h>
#include <nccl.h>

#include <thread>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/shared_library.h"
#include "libshard/device/cuda/cuda_device.h"
#include "libshard/ranks/collective_step.h"

namespace shard::cuda {

namespace {

using Clock = std::chrono::steady_clock;

/// The functions of NCCL that a link needs.
struct Nccl {
  decltype(&ncclGetVersion) get_version;
  decltype(&ncclGetUniqueId) get_unique_id;
  decltype(&ncclCommInitRankConfig) init_rank;
  decltype(&ncclCommGetAsyncError) async_error;
  decltype(&ncclCommAbort) abort;
  decltype(&ncclGroupStart) group_start;
  decltype(&ncclGroupEnd) group_end;
  decltype(&ncclSend) send;
  decltype(&ncclRecv) receive;
  decltype(&ncclGetErrorString) error_string;
};

/// \throws Error kUnsupported  it is not installed, or too old.
Nccl load_nccl() {
  SharedLibrary library("libnccl.so.2");
  if (!library.is_open()) library = SharedLibrary(SHARD_NCCL_LIBRARY);  // The path that was found when this was built.
  if (!library.is_open()) {
    throw Error(ErrorCode::kUnsupported, "cannot connect GPUs: NCCL is not installed")
        .because(library.why())
        .hint("install NCCL 2.14 or newer (libnccl.so.2)");
  }
  const auto take = [&]<class Function>(Function& function, const char* name) {
    function = reinterpret_cast<Function>(library.entry(name));
  };
  Nccl nccl{};
  take(nccl.get_version, "ncclGetVersion");
  take(nccl.get_unique_id, "ncclGetUniqueId");
  take(nccl.init_rank, "ncclCommInitRankConfig");
  take(nccl.async_error, "ncclCommGetAsyncError");
  take(nccl.abort, "ncclCommAbort");
  take(nccl.group_start, "ncclGroupStart");
  take(nccl.group_end, "ncclGroupEnd");
  take(nccl.send, "ncclSend");
  take(nccl.receive, "ncclRecv");
  take(nccl.error_string, "ncclGetErrorString");
  return nccl;
}

/// NCCL calls return at once (a non-blocking communicator), so that a lost rank is noticed here.
class NcclLink final : public DeviceLink {
 public:
  NcclLink(const Nccl& nccl, const DeviceInfo& device, std::chrono::milliseconds timeout)
      : nccl_(nccl), device_(device), timeout_(timeout), stream_(device) {
    check(cudaEventCreateWithFlags(&done_, cudaEventDisableTiming), device_, "make an event");
  }
  ~NcclLink() override {
    break_link();
    cudaEventDestroy(done_);
  }

  /// Forms the communicator of all ranks in the group.
  void form(const ncclUniqueId& id, int rank, int ranks, const std::stop_token& stop) {
    use(device_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    check_nccl(nccl_.init_rank(&comm_, ranks, id, rank, &config));
    wait_until([&] {
      if (stop.stop_requested()) throw Error(ErrorCode::kInterrupted, "interrupted");
      return is_idle();
    });
  }

  void exchange(std::span<const std::span<const std::byte>> to, std::span<const std::span<std::byte>> from) override {
    use(device_);
    if (comm_ == nullptr) throw Error(ErrorCode::kPeer, "the link between GPUs is broken");
    check_nccl(nccl_.group_start());
    for (std::size_t rank = 0; rank < to.size(); ++rank) {
      const auto peer = static_cast<int>(rank);
      if (!to[rank].empty()) {
        check_nccl(nccl_.send(to[rank].data(), to[rank].size(), ncclUint8, peer, comm_, stream_.get()));
      }
      if (!from[rank].empty()) {
        check_nccl(nccl_.receive(from[rank].data(), from[rank].size(), ncclUint8, peer, comm_, stream_.get()));
      }
    }
    check_nccl(nccl_.group_end());
    wait_until([&] { return is_idle(); });
    check(cudaEventRecord(done_, stream_.get()), device_, "record an event");
    wait_until([&] { return is_idle() && has_passed(); });
  }

 private:
  void check_nccl(ncclResult_t status) {
    if (status == ncclSuccess || status == ncclInProgress) return;
    break_link();
    throw Error(ErrorCode::kPeer, "the link between GPUs is broken").because(nccl_.error_string(status));
  }

  bool is_idle() {
    ncclResult_t state = ncclSuccess;
    check_nccl(nccl_.async_error(comm_, &state));
    check_nccl(state);
    return state == ncclSuccess;
  }
  bool has_passed() {
    const cudaError_t status = cudaEventQuery(done_);
    if (status == cudaErrorNotReady) return false;
    check(status, device_, "exchange pieces");
    return true;
  }

  template <class Condition>
  void wait_until(const Condition& is_met) {
    const Clock::time_point end = Clock::now() + timeout_;
    while (!is_met()) {
      if (Clock::now() > end) {
        break_link();
        throw Error(ErrorCode::kPeer, "another rank's GPU is not responding")
            .because(fmt::format("no data arrived for {} ms", timeout_.count()));
      }
      std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
  }

  void break_link() {
    if (comm_ != nullptr) nccl_.abort(std::exchange(comm_, nullptr));
  }

  const Nccl nccl_;
  const DeviceInfo& device_;
  const std::chrono::milliseconds timeout_;
  Stream stream_;
  cudaEvent_t done_ = nullptr;
  ncclComm_t comm_ = nullptr;
};

}  // namespace

std::string nccl_version() {
  try {
    int version = 0;
    load_nccl().get_version(&version);
    return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
  } catch (const Error&) {
    return {};  // NCCL is not installed, which is a valid answer.
  }
}

std::unique_ptr<DeviceLink> connect_by_nccl(const DeviceInfo& device, Group& group, std::chrono::milliseconds timeout) {
  ncclUniqueId id{};
  std::unique_ptr<NcclLink> link;
  collective_step(group, {}, [&](const std::stop_token&) {
    const Nccl nccl = load_nccl();
    link = std::make_unique<NcclLink>(nccl, device, timeout);
    if (group.rank() == 0 && nccl.get_unique_id(&id) != ncclSuccess) {
      throw Error(ErrorCode::kUnsupported, "cannot connect GPUs: NCCL found no usable network");
    }
  });
  group.broadcast(std::as_writable_bytes(std::span(&id, 1)), 0);
  collective_step(group, {}, [&](const std::stop_token& stop) { link->form(id, group.rank(), group.size(), stop); });
  return link;
}

}  // namespace shard::cuda
