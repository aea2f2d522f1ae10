/// \file
/// The reason why a test of ranks cannot run here, as an exit code that all ranks agree on.
///
/// The functions below throw Skip if the test cannot run. The caller converts this to a skip: a rank's process ends
/// with the code, and its parent skips once all ranks have ended so; a rank's thread passes the exception on; set_up
/// skips before any rank starts. A plain TEST uses SHARD_SKIP_HERE(skip_if_lt_x_gpu(1)).
///
/// Source: torch/testing/_internal/common_distributed.py (torch 2.11), including the codes and texts.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <stdexcept>
#include <string>
#include <string_view>

namespace shard::test {

struct TestSkip {
  std::string_view key;
  int exit_code;
  std::string_view message;
};

/// All reasons: codes 72 to 88, each once.
std::span<const TestSkip> test_skips();
/// \throws std::out_of_range  no such key ("multi-gpu-9": the table ends at 8).
const TestSkip& test_skip(std::string_view key);
/// Null if the code is not a skip.
const TestSkip* find_test_skip(int exit_code);

/// Thrown if a rank cannot run the test.
class Skip : public std::runtime_error {
 public:
  /// A reason of the table.
  explicit Skip(const TestSkip& why) : std::runtime_error(std::string(why.message)), exit_code_(why.exit_code) {}
  /// A reason outside the table: code 86, with the text in the rank's own output.
  explicit Skip(const std::string& why) : std::runtime_error(why), exit_code_(test_skip("generic").exit_code) {}
  int exit_code() const { return exit_code_; }

 private:
  int exit_code_;
};

/// Thrown if a rank requests to end with this code, for tests that compare codes. Not for skips.
struct ExitRequest {
  int exit_code;
};

// --- Available features ---------------------------------------------------------------------------------------------

/// GPUs that torch can use; 0 on machines without NVIDIA's driver, and if libtorch_cuda.so cannot be loaded. Cost: with
/// a driver, the load of libtorch_cuda.so, once.
int cuda_device_count();
/// \pre 0 <= index < cuda_device_count()
void set_cuda_device(int index);
/// Major, minor and patch of the NCCL library; nothing if there is none.
std::optional<std::array<int, 3>> nccl_version();
/// "gloo": yes; "nccl": if libshard_nccl.so was built; others: no.
bool backend_is_built(std::string_view backend);

/// Collective operations and the backends that cannot do them; features and the backends that have them.
extern const std::map<std::string, std::set<std::string>> kSkipCollective;
extern const std::map<std::string, std::set<std::string>> kBackendFeature;

// --- Skips ----------------------------------------------------------------------------------------------------------

/// No GPU: 74; fewer than the variable WORLD_SIZE: its multi-gpu code.
void skip_if_no_gpu();
/// WORLD_SIZE is at most 2, unless BACKEND is mpi: 73.
void skip_if_small_worldsize();
/// WORLD_SIZE is odd, unless BACKEND is mpi: 87.
void skip_if_odd_worldsize();
/// `backend` is nccl and there are fewer than `n` GPUs: the code of multi-gpu-n.
void require_n_gpus_for_nccl_backend(int n, std::string_view backend);
/// Fewer than `x` GPUs: the code of multi-gpu-x.
void skip_if_lt_x_gpu(int x);
/// The same, if `backend` is nccl.
void nccl_skip_if_lt_x_gpu(std::string_view backend, int x);
/// There is no package to import in C++: always 88.
[[noreturn]] void import_transformers_or_skip();
/// Built for ROCm: 78.
void skip_if_rocm();
void skip_if_win32();

/// "c10d was not compiled with the Gloo backend" and so on.
void requires_gloo();
void requires_nccl();
void requires_ucc();
void requires_mpi();
/// The message of requires_nccl; or "Requires NCCL version greater than or equal to: 2.10.0, found: 2.9.1, reason:
/// ...".
void requires_nccl_version(std::array<int, 3> version, std::string_view reason);

/// The variable SANDCASTLE is 1: skips count as passed there, with a line on stderr.
bool in_sandcastle();
/// Throws Skip, unless in_sandcastle(): then prints "Skipping <test> on sandcastle for following reason: <reason>" and
/// returns true; the test should return.
bool skip_but_pass_in_sandcastle_if(bool condition, const std::string& reason);
inline bool skip_but_pass_in_sandcastle(const std::string& reason) {
  return skip_but_pass_in_sandcastle_if(true, reason);
}

/// The reason why `check` skips; nothing if it does not.
std::optional<std::string> skip_reason(const std::function<void()>& check);

}  // namespace shard::test

/// In a plain TEST or a SetUp: skips it if `check` throws Skip.
#define SHARD_SKIP_HERE(check) \
  if (const auto shard_why = ::shard::test::skip_reason([&] { check; }); shard_why) GTEST_SKIP() << *shard_why
