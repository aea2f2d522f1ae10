/// \file
/// Runs one function on several threads at once. Inside libshard/exec only.
#pragma once

#include <functional>

namespace shard {

/// Calls `work` on `threads` threads (the caller's is one of them) and returns when all calls have. More threads than
/// cores are possible. \pre work does not throw and tolerates that some calls begin only after others have ended.
void run_workers(int threads, const std::function<void()>& work);

}  // namespace shard
