/// \file
/// Saves of the real DeepSpeed, and changed ones in memory. Its test names SHARD_TEST_DATA.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <string>

#include "formats/format.h"
#include "libshard/io/local_output.h"
#include "libshard/ranks/group.h"
#include "tests/formats/torch_files.h"
#include "tests/support/bytes.h"
#include "tests/support/content.h"
#include "tests/support/expect_error.h"
#include "tests/support/memory_disk.h"

namespace shard::testing {

inline std::string save_path(const std::string& name) { return std::string(SHARD_TEST_DATA) + "/deepspeed/" + name; }

inline constexpr const char* kStage1Model = "mp_rank_00_model_states.pt";
inline constexpr std::array kStage1Optimizers{"zero_pp_rank_0_mp_rank_00_optim_states.pt",
                                              "zero_pp_rank_1_mp_rank_00_optim_states.pt"};

/// The value under a key of the optimizer's dict.
inline Value& in_optimizer(Value& root, const char* key) {
  return *find_key(*find_key(root, "optimizer_state_dict"), key);
}

/// Replaces the value of an existing key; the old one may be shared.
inline void set(Value& mapping, std::string_view key, Value* value) {
  const std::span<Value*> items = mapping_items(mapping);
  for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
    if (items[i]->is_string() && items[i]->text() == key) items[i + 1] = value;
  }
}

/// Optimizer states in a list, as before DeepSpeed 0.5.10. For edit_optimizers. \pre of one group
inline void list_states(Arena& arena, Value& root) {
  Value& base = in_optimizer(root, "base_optimizer_state");
  Value* const group = mapping_items(*find_key(base, "state"))[1];
  base = *make_list(arena, ValueKind::kList, std::array{group});
}

/// The form of BF16_Optimizer. For edit_optimizers.
inline void forget_stage(Arena& arena, Value& root) {
  set(*find_key(root, "optimizer_state_dict"), "zero_stage", make_value(arena, ValueKind::kNone));
}

/// A save in memory, for tests that change it.
class DamagedSave : public ::testing::Test {
 protected:
  void take(const std::string& name, const std::string& file, std::string as = {}) {
    std::ifstream stream(save_path(name) + "/global_step2/" + file, std::ios::binary);
    files_[as.empty() ? file : as] = {std::istreambuf_iterator<char>(stream), {}};
  }
  void take_all(const std::string& name) {
    for (const auto& entry : std::filesystem::directory_iterator(save_path(name) + "/global_step2"))
      take(name, entry.path().filename());
  }
  void edit(const std::string& file, const std::function<void(Arena&, Value&)>& change) {
    files_.at(file) = repickled(files_.at(file), change);
  }
  /// The number of ranks of take_all("stage1").
  void edit_optimizers(const std::function<void(Arena&, Value&)>& change) {
    for (const char* file : kStage1Optimizers) edit(file, change);
  }
  std::unique_ptr<Reader> open() {
    state_ = std::make_shared<MemoryState>();
    disk_ = make_memory_disk(state_);
    for (const auto& [name, bytes] : files_) state_->put("/s/" + name, std::as_bytes(std::span(bytes)));
    return open_checkpoint(*disk_, "/s");
  }
  Error error() {
    return test::error_of([&] { open(); });
  }
  void expect_refused(ErrorCode code, FindingKind kind, const std::string& words) {
    const Error found = error();
    EXPECT_EQ(found.code(), code) << found.what();
    EXPECT_EQ(found.kind(), kind) << found.what();
    EXPECT_THAT(std::string(found.what()) + " " + found.file(), ::testing::HasSubstr(words));
  }

  std::map<std::string, std::string> files_;
  std::shared_ptr<MemoryState> state_;
  std::unique_ptr<LocalDisk> disk_;
};

/// A save that is written again, as /out.
class RemadeSave : public DamagedSave {
 protected:
  /// The save as `format` writes it, opened again.
  std::unique_ptr<Reader> remade(const Format& format, const RewriteOptions& options) {
    open();
    rewrite(format, options);
    return format.open({disk_.get(), {"/out"}}, {});
  }
  void rewrite(const Format& format, const RewriteOptions& options) {
    Rewrite made = format.rewrite({disk_.get(), {"/s"}}, {}, options);
    CopyJob job;
    job.reader = made.reader.get();
    job.target.make = [&] { return std::move(made.target); };
    job.make_writer = [&](const Catalog&) { return std::move(made.writer); };
    Progress progress;
    run_copy_job(*local_output(*disk_, "/out", {}, {.force = true}), solo_group(), std::move(job), progress, {});
  }
  Error refusal(const Format& format, const RewriteOptions& options) {
    return test::error_of([&] { remade(format, options); });
  }
  std::string content_of(const std::string& path) const { return test::as_text(state_->content(path)); }
};

}  // namespace shard::testing
