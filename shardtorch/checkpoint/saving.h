/// \file
/// Saving in steps, on all ranks together. Inside shardtorch/checkpoint only.
#pragma once

#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "libshard/catalog/layouts/placement.h"
#include "libshard/io/output.h"
#include "libshard/ranks/group.h"
#include "shardtorch/checkpoint/checkpoint.h"

namespace shard::checkpoint {

class StateReader;

/// One save. All ranks of a group run the same steps, and each step succeeds or fails on all of them.
class Saving {
 public:
  /// Compares the ranks' requests and states. Ownership: shares the state's tensors until `stage`.
  /// \throws Error  see save(). \pre this process is a member
  Saving(const ProcessGroup& members, const StateDict& state, std::string path, const SaveOptions& options);
  ~Saving();

  /// Checks whether the destination can be written: its folder exists, and nothing would be replaced unless `force`.
  /// Changes nothing. \throws Error kExists, kResource  the same on all ranks
  void check_destination(Group& group, const std::stop_token& stop) const;
  /// Copies this rank's part into separate host memory. Afterwards the state may change.
  void stage(Group& group, const std::stop_token& stop);
  /// Writes the checkpoint. `group` may be any group of the same ranks in the same order. \throws Error  see save()
  void write(Group& group, const std::stop_token& stop) const;

 private:
  std::unique_ptr<OutputStore> open_output() const;

  const std::string path_;
  const SaveOptions options_;
  std::unique_ptr<StateReader> reader_;
  std::optional<RankFiles> rank_files_;  ///< Set if the ranks' files must contain DTensors.
};

}  // namespace shard::checkpoint
