#include "shardtorch/checkpoint/async_save.h"

#include <unistd.h>

#include <future>
#include <stop_token>
#include <utility>

#include "shardtorch/checkpoint/saving.h"

namespace shard::checkpoint {

namespace {

/// Creates a group of the same ranks with separate connections, which transfers host memory.
ProcessGroupPtr twin_of(const ProcessGroup& group) {
  return new_group(group.global_ranks(),
                   {.backend = group.backend() == "nccl" ? "gloo" : "", .local_synchronization = true});
}

/// Lowers the priority of the calling thread and of the threads that it starts, so that those of the program run first.
/// Not as far as possible, because other ranks wait for this one, however busy its processors are.
void yield_to_the_program() {
  constexpr int kNicer = 15;
  [[maybe_unused]] const int is = nice(kNicer);  // Changes only this thread, on Linux.
}

}  // namespace

class AsyncSave::Task {
 public:
  Task(std::unique_ptr<Saving> saving, ProcessGroupPtr group, std::stop_token stop)
      : saving_(std::move(saving)), group_(std::move(group)), forward_(std::move(stop), [this] { cancel(); }) {
    const auto write = [this] {
      yield_to_the_program();
      saving_->write(group_->group(), stop_.get_token());
    };
    done_ = std::async(std::launch::async, write).share();
  }
  void cancel() noexcept { stop_.request_stop(); }
  const std::shared_future<void>& done() const { return done_; }

 private:
  const std::unique_ptr<Saving> saving_;
  const ProcessGroupPtr group_;
  std::stop_source stop_;
  std::stop_callback<std::function<void()>> forward_;
  std::shared_future<void> done_;  ///< Destroying the last reference waits, so it is destroyed first.
};

AsyncSave::AsyncSave(std::unique_ptr<Task> task) : task_(std::move(task)) {}
AsyncSave::AsyncSave(AsyncSave&&) noexcept = default;
AsyncSave& AsyncSave::operator=(AsyncSave&&) noexcept = default;
AsyncSave::~AsyncSave() = default;

bool AsyncSave::wait_for(std::chrono::milliseconds time) const {
  return task_->done().wait_for(time) == std::future_status::ready;
}

void AsyncSave::wait() const { task_->done().get(); }

void AsyncSave::cancel() noexcept { task_->cancel(); }

AsyncSave async_save(const StateDict& state, const std::string& path, ProcessGroupPtr group,
                     const SaveOptions& options) {
  group = group_or_default(std::move(group));
  Group& ranks = group->member_group();
  auto saving = std::make_unique<Saving>(*group, state, path, options);
  saving->check_destination(ranks, options.stop);
  saving->stage(ranks, options.stop);
  return AsyncSave(std::make_unique<AsyncSave::Task>(std::move(saving), twin_of(*group), options.stop));
}

}  // namespace shard::checkpoint
