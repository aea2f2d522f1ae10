#include "tests/support/distributed/skips.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <dlfcn.h>

#include <algorithm>
#include <filesystem>
#include <iostream>

#include "tests/support/distributed/environment.h"

namespace shard::test {
namespace {

constexpr TestSkip kTestSkips[] = {
    {"backend_unavailable", 72, "Skipped because distributed backend is not available."},
    {"small_worldsize", 73, "Skipped due to small world size."},
    {"odd_worldsize", 87, "Skipped due to odd world size."},
    {"no_cuda", 74, "CUDA is not available."},
    {"multi-gpu-1", 75, "Need at least 1 CUDA device"},
    {"multi-gpu-2", 77, "Need at least 2 CUDA devices"},
    {"multi-gpu-3", 80, "Need at least 3 CUDA devices"},
    {"multi-gpu-4", 81, "Need at least 4 CUDA devices"},
    {"multi-gpu-5", 82, "Need at least 5 CUDA devices"},
    {"multi-gpu-6", 83, "Need at least 6 CUDA devices"},
    {"multi-gpu-7", 84, "Need at least 7 CUDA devices"},
    {"multi-gpu-8", 85, "Need at least 8 CUDA devices"},
    {"nccl", 76, "c10d not compiled with NCCL support"},
    {"skipIfRocm", 78, "Test skipped for ROCm"},
    {"no_peer_access", 79, "Test skipped because no GPU peer access"},
    {"generic", 86, "Test skipped at subprocess level, look at subprocess log for skip reason"},
    {"importerror", 88, "Test skipped due to missing import"},
};

const TestSkip& multi_gpu(int count) { return test_skip("multi-gpu-" + std::to_string(count)); }

/// Registers CUDA with torch, if there is a driver. The library is never unloaded, as torch's libraries require.
const c10::impl::DeviceGuardImplInterface* cuda_guard() {
  static const c10::impl::DeviceGuardImplInterface* const guard = []() -> const c10::impl::DeviceGuardImplInterface* {
    if (!std::filesystem::exists("/dev/nvidiactl")) return nullptr;
    if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
      std::cerr << "There is an NVIDIA driver, but no CUDA for torch: " << dlerror() << '\n';
      return nullptr;
    }
    return c10::impl::hasDeviceGuardImpl(c10::kCUDA) ? c10::impl::getDeviceGuardImpl(c10::kCUDA) : nullptr;
  }();
  return guard;
}

void requires_backend(std::string_view backend, const std::string& its_name) {
  skip_but_pass_in_sandcastle_if(!backend_is_built(backend), "c10d was not compiled with the " + its_name + " backend");
}

std::string dotted(const std::array<int, 3>& version) {
  return std::to_string(version[0]) + '.' + std::to_string(version[1]) + '.' + std::to_string(version[2]);
}

}  // namespace

std::span<const TestSkip> test_skips() { return kTestSkips; }

const TestSkip& test_skip(std::string_view key) {
  const auto* const found = std::ranges::find(kTestSkips, key, &TestSkip::key);
  if (found == std::end(kTestSkips)) throw std::out_of_range("no skip has the key " + std::string(key));
  return *found;
}

const TestSkip* find_test_skip(int exit_code) {
  const auto* const found = std::ranges::find(kTestSkips, exit_code, &TestSkip::exit_code);
  return found == std::end(kTestSkips) ? nullptr : found;
}

const std::map<std::string, std::set<std::string>> kSkipCollective = {
    {"allgather_coalesced", {"nccl", "mpi", "ucc"}},
    {"reduce", {}},
    {"sendrecv anysource", {"nccl", "ucc"}},
    {"cpu barrier", {"nccl", "ucc"}},
};
const std::map<std::string, std::set<std::string>> kBackendFeature = {
    {"gpu", {"nccl", "gloo", "ucc"}},
    {"cuda", {"nccl", "gloo", "ucc"}},
    {"ddp", {"nccl", "gloo", "ucc"}},
    {"subgroup", {"nccl", "gloo", "ucc"}},
    {"plugin", {}},
};

int cuda_device_count() {
  const auto* const guard = cuda_guard();
  return guard == nullptr ? 0 : guard->deviceCount();
}

void set_cuda_device(int index) {
  cuda_guard()->setDevice(c10::Device(c10::kCUDA, static_cast<c10::DeviceIndex>(index)));
}

std::optional<std::array<int, 3>> nccl_version() {
  void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return std::nullopt;
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "ncclGetVersion"));
  int code = 0;  // 22809 is 2.28.9.
  if (get_version == nullptr || get_version(&code) != 0) return std::nullopt;
  return std::array{code / 10000, code / 100 % 100, code % 100};
}

bool backend_is_built(std::string_view backend) {
#ifdef SHARD_TEST_HAS_NCCL
  if (backend == "nccl") return true;
#endif
  return backend == "gloo";
}

void skip_if_no_gpu() {
  if (cuda_device_count() == 0) throw Skip(test_skip("no_cuda"));
  skip_if_lt_x_gpu(number_variable("WORLD_SIZE", 1));
}

void skip_if_small_worldsize() {
  if (test_backend() != "mpi" && number_variable("WORLD_SIZE", 1) <= 2) throw Skip(test_skip("small_worldsize"));
}

void skip_if_odd_worldsize() {
  if (test_backend() != "mpi" && number_variable("WORLD_SIZE", 1) % 2 == 1) throw Skip(test_skip("odd_worldsize"));
}

void require_n_gpus_for_nccl_backend(int n, std::string_view backend) { nccl_skip_if_lt_x_gpu(backend, n); }

void skip_if_lt_x_gpu(int x) {
  if (cuda_device_count() < x) throw Skip(multi_gpu(x));
}

void nccl_skip_if_lt_x_gpu(std::string_view backend, int x) {
  if (backend == "nccl") skip_if_lt_x_gpu(x);
}

void import_transformers_or_skip() { throw Skip(test_skip("importerror")); }

void skip_if_rocm() {
#ifdef USE_ROCM
  throw Skip(test_skip("skipIfRocm"));
#endif
}

void skip_if_win32() {
#ifdef _WIN32
  throw Skip("This unit test case is not supported on Windows platform");
#endif
}

void requires_gloo() { requires_backend("gloo", "Gloo"); }
void requires_nccl() { requires_backend("nccl", "NCCL"); }
void requires_ucc() { requires_backend("ucc", "UCC"); }
void requires_mpi() { requires_backend("mpi", "MPI"); }

void requires_nccl_version(std::array<int, 3> version, std::string_view reason) {
  requires_nccl();
  const std::array<int, 3> found = nccl_version().value_or(std::array{0, 0, 0});
  skip_but_pass_in_sandcastle_if(found < version, "Requires NCCL version greater than or equal to: " + dotted(version) +
                                                      ", found: " + dotted(found) + ", reason: " + std::string(reason));
}

bool in_sandcastle() { return variable("SANDCASTLE") == "1"; }

bool skip_but_pass_in_sandcastle_if(bool condition, const std::string& reason) {
  if (!condition) return false;
  if (!in_sandcastle()) throw Skip(reason);
  const ::testing::TestInfo* const test = ::testing::UnitTest::GetInstance()->current_test_info();
  std::cerr << "Skipping " << (test == nullptr ? "tests" : test->name())
            << " on sandcastle for following reason: " << reason << '\n';
  return true;
}

std::optional<std::string> skip_reason(const std::function<void()>& check) {
  try {
    check();
  } catch (const Skip& skip) {
    return skip.what();
  }
  return std::nullopt;
}

}  // namespace shard::test
