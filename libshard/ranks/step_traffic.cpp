#include "libshard/ranks/step_traffic.h"

namespace shard {

void AwaitedTraffic::begin(StepHandle& step) {
  const std::scoped_lock lock(mutex_);
  step_ = &step;
  is_stopped_ = false;
}

void AwaitedTraffic::end() {
  const std::scoped_lock lock(mutex_);
  step_ = nullptr;
}

void AwaitedTraffic::stop() {
  const std::scoped_lock lock(mutex_);
  is_stopped_ = true;
  changed_.notify_all();
}

}  // namespace shard
