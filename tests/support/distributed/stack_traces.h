/// \file
/// Stacks of a stuck or dying process, as text. Names of the program's own functions need -rdynamic.
#pragma once

#include <string>

namespace shard::test {

/// Stacks of all threads except the calling one. Each is interrupted by SIGUSR2 in turn; the text reports a thread that
/// does not handle the signal within half a second. Threads: one caller at a time.
std::string stacks_of_other_threads();

/// From now on SIGSEGV, SIGABRT, SIGBUS, SIGILL and SIGFPE write the thread's stack to stderr before they end the
/// process.
void write_stack_on_fatal_signals();

}  // namespace shard::test
