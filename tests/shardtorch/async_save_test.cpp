// Saving in the background, with ranks as threads.
#include "shardtorch/checkpoint/async_save.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <mutex>

#include "tests/shardtorch/checkpoint_fixture.h"

namespace shard::test {
namespace {

using checkpoint::AsyncSave;
using ::testing::IsEmpty;

/// Saves wait at this gate, depending on their progress.
class Door {
 public:
  void open() {
    const std::scoped_lock lock(mutex_);
    is_open_ = true;
    changed_.notify_all();
  }
  checkpoint::OnProgress wait() {
    return [this](std::int64_t, std::int64_t) {
      std::unique_lock lock(mutex_);
      changed_.wait(lock, [this] { return is_open_; });
    };
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_open_ = false;
};

class AsyncSaves : public Checkpoint {
 protected:
  static at::Tensor whole() { return content({8, 3}, at::kFloat); }
  static StateDict state() {
    return state_of({{"w", value(cut(whole(), chunk_spec(0, placements(2))))}, {"b", at::ones({3})}, {"step", 7}});
  }
  void expect_saved() const {
    StateDict loaded =
        state_of({{"w", value(blank(whole(), chunk_spec(1, placements(2))))}, {"b", at::zeros({3})}, {"step", 0}});
    checkpoint::load(loaded, path());
    expect_content(ShardedTensor::of(loaded["w"].toTensor()), whole());
    EXPECT_TRUE(loaded["b"].toTensor().equal(at::ones({3})));
    EXPECT_EQ(loaded["step"].toInt(), 7);
  }
};

TEST_F(AsyncSaves, KeepWhatTheStateWasWhenTheyReturned) {
  Door door;
  as_ranks(2, [&](int rank) {
    StateDict saved = state();
    checkpoint::SaveOptions options = as("dcp");
    options.on_progress = door.wait();
    const AsyncSave save = checkpoint::async_save(saved, path(), nullptr, options);
    EXPECT_FALSE(save.is_done());
    // The state changes and the group is used while the save waits.
    for (const Shard& shard : ShardedTensor::of(saved["w"].toTensor()).local_shards()) shard.tensor.fill_(-1);
    saved["b"].toTensor().zero_();
    default_group()->barrier();
    EXPECT_THAT(names_in(folder_.path()), ::testing::Not(::testing::Contains("saved")));
    default_group()->barrier();
    if (rank == 0) door.open();
    save.wait();
    save.wait();
    EXPECT_TRUE(save.is_done());
    expect_saved();
  });
}

TEST_F(AsyncSaves, RunAtALowerPriorityThanTheProgram) {
  as_ranks(2, [&](int) {
    const int own = getpriority(PRIO_PROCESS, 0);  // The calling thread has a priority of its own.
    std::atomic<int> of_save = own;
    checkpoint::SaveOptions options = as("dcp");
    options.on_progress = [&](std::int64_t, std::int64_t) { of_save = getpriority(PRIO_PROCESS, 0); };
    checkpoint::async_save(state(), path(), nullptr, options).wait();
    EXPECT_EQ(of_save, std::min(own + 15, 19));
    EXPECT_EQ(getpriority(PRIO_PROCESS, 0), own);
  });
}

TEST_F(AsyncSaves, AreCancelledForAllRanksByOne) {
  Door door;
  as_ranks(2, [&](int rank) {
    checkpoint::SaveOptions options = as("dcp");
    options.on_progress = door.wait();
    AsyncSave save = checkpoint::async_save(state(), path(), nullptr, options);
    if (rank == 1) save.cancel();
    if (rank == 1) door.open();
    expect_error(ErrorCode::kInterrupted, "", [&] { save.wait(); });
    default_group()->barrier();
    EXPECT_THAT(names_in(folder_.path()), IsEmpty());
    // The group is unchanged, and so is the next save.
    checkpoint::async_save(state(), path(), nullptr, as("dcp")).wait();
    expect_saved();
  });
}

TEST_F(AsyncSaves, AreAwaitedByTheirHandlesEnd) {
  as_ranks(2, [&](int) {
    { const AsyncSave save = checkpoint::async_save(state(), path(), nullptr, as("dcp")); }
    default_group()->barrier();
    expect_saved();
  });
}

TEST_F(AsyncSaves, FailAlikeOnAllRanks) {
  as_ranks(2, [&](int rank) {
    StateDict wrong = state();
    if (rank == 1) wrong.insert("sparse", at::ones({2, 2}).to_sparse());
    expect_error_of("sparse", ErrorCode::kUnsupported, "cannot store this kind of tensor",
                    [&] { (void)checkpoint::async_save(wrong, path()); });
    checkpoint::SaveOptions options = as("dcp");
    if (rank == 1) {
      options.on_progress = [](std::int64_t, std::int64_t) { throw Error(ErrorCode::kResource, "a full disk"); };
    }
    const AsyncSave save = checkpoint::async_save(state(), path(), nullptr, options);
    expect_error(ErrorCode::kResource, "a full disk", [&] { save.wait(); });
    checkpoint::save(state(), path(), nullptr, as("dcp"));
  });
}

TEST_F(AsyncSaves, FailAtTheCallWhereTheDestinationCannotBeWritten) {
  as_ranks(2, [&](int) {
    const auto save_to = [&](const std::string& where) {
      return [&, where] { (void)checkpoint::async_save(state(), where, nullptr, as("dcp")); };
    };
    expect_error(ErrorCode::kResource, "its parent folder does not exist", save_to(path() + "/absent/step-1"));
    checkpoint::save(state(), path(), nullptr, as("dcp"));
    expect_error(ErrorCode::kExists, "the destination already exists", save_to(path()));
    // The group is unchanged, and `force` still replaces.
    checkpoint::SaveOptions options = as("dcp");
    options.force = true;
    checkpoint::async_save(state(), path(), nullptr, options).wait();
    expect_saved();
  });
}

TEST_F(AsyncSaves, AreStoppedByATokenToo) {
  Door door;
  as_ranks(2, [&](int rank) {
    std::stop_source stop;
    checkpoint::SaveOptions options = as("dcp");
    options.on_progress = door.wait();
    options.stop = stop.get_token();
    const AsyncSave save = checkpoint::async_save(state(), path(), nullptr, options);
    if (rank == 0) stop.request_stop();
    if (rank == 0) door.open();
    expect_error(ErrorCode::kInterrupted, "", [&] { save.wait(); });
  });
}

}  // namespace
}  // namespace shard::test
