/// \file
/// Stacks of a process that is stuck or dies, as text. Names of the program's own functions need -rdynamic.
#pragma once

#include <string>

namespace shard::test {

/// Of all threads but the calling one. Each is interrupted by SIGUSR2 in turn; one that does not take the signal within
/// half a second is said so. Threads: one caller at a time.
std::string stacks_of_other_threads();

/// From now on SIGSEGV, SIGABRT, SIGBUS, SIGILL and SIGFPE write the thread's stack to stderr before they end the
/// process.
void write_stack_on_fatal_signals();

}  // namespace shard::test
