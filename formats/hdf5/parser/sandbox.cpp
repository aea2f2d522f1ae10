#include "formats/hdf5/parser/sandbox.h"

#include <seccomp.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <initializer_list>

namespace shard::hdf5 {

namespace {

/// Of what the parent had open.
void close_all_but_socket() {
  if (syscall(__NR_close_range, 1U, ~0U, 0U) == 0) return;
  constexpr rlim_t kMost = 1 << 20;  // What kernels before 5.9 give to a process that asks for no more.
  rlimit descriptors{};
  getrlimit(RLIMIT_NOFILE, &descriptors);
  for (rlim_t each = 1; each < std::min(descriptors.rlim_cur, kMost); ++each) close(static_cast<int>(each));
}

/// Lowers a limit, whose signal comes at `most`. One that is lower already stays: a process may not raise it.
bool limit(__rlimit_resource resource, std::int64_t most, std::int64_t grace = 0) {
  rlimit now{};
  if (getrlimit(resource, &now) != 0) return false;
  const rlim_t hard = std::min(static_cast<rlim_t>(most + grace), now.rlim_max);
  const rlimit lower{std::min({static_cast<rlim_t>(most), now.rlim_cur, hard}), hard};
  return setrlimit(resource, &lower) == 0;
}

bool set_limits(const SandboxLimits& limits) {
  constexpr int kDescriptors = 1;  // The socket, so that nothing can be opened.
  constexpr int kGrace = 1;        // Seconds, so that the signal is SIGXCPU.
  return limit(RLIMIT_AS, limits.memory_bytes) && limit(RLIMIT_CPU, limits.cpu_seconds, kGrace) &&
         limit(RLIMIT_FSIZE, 0) && limit(RLIMIT_CORE, 0) && limit(RLIMIT_NOFILE, kDescriptors);
}

/// All other calls fail with EPERM.
bool add_rules(scmp_filter_ctx filter) {
  const scmp_arg_cmp of_socket = SCMP_A0(SCMP_CMP_EQ, 0);
  const scmp_arg_cmp of_memory = SCMP_A3(SCMP_CMP_MASKED_EQ, MAP_ANONYMOUS, MAP_ANONYMOUS);
  const scmp_arg_cmp not_code = SCMP_A2(SCMP_CMP_MASKED_EQ, PROT_EXEC, 0);
  bool is_added = true;
  for (const int call : {SCMP_SYS(read), SCMP_SYS(write)}) {
    is_added &= seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 1, of_socket) == 0;
  }
  is_added &= seccomp_rule_add(filter, SCMP_ACT_ALLOW, SCMP_SYS(mmap), 2, of_memory, not_code) == 0;
  for (const int call : {SCMP_SYS(munmap), SCMP_SYS(mremap), SCMP_SYS(madvise), SCMP_SYS(brk), SCMP_SYS(exit),
                         SCMP_SYS(exit_group), SCMP_SYS(futex), SCMP_SYS(rt_sigreturn), SCMP_SYS(restart_syscall),
                         SCMP_SYS(clock_gettime), SCMP_SYS(gettimeofday),
                         SCMP_SYS(gettid)}) {  // LLVM's C++ library asks it where a static object is initialised.
    is_added &= seccomp_rule_add(filter, SCMP_ACT_ALLOW, call, 0) == 0;
  }
  return is_added;
}

bool filter_calls() {
  scmp_filter_ctx filter = seccomp_init(SCMP_ACT_ERRNO(1));
  if (filter == nullptr) return false;
  const bool is_loaded = add_rules(filter) && seccomp_load(filter) == 0;
  seccomp_release(filter);
  return is_loaded;
}

}  // namespace

bool enter_sandbox(const SandboxLimits& limits) {
  close_all_but_socket();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  prctl(PR_SET_DUMPABLE, 0);
  if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 || !set_limits(limits)) return false;
  return filter_calls();
}

}  // namespace shard::hdf5
