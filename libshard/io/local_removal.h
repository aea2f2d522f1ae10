/// \file
/// LocalRemoval: the Output of a place that gets no file, where an old destination has to go. Inside libshard/io only.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "libshard/io/destination.h"
#include "libshard/io/local_folder.h"
#include "libshard/io/output.h"

namespace shard {

/// The commit moves what stands at the destination aside, as `.NAME.shardctl-old-XXXXXXXX`; it is removed when the
/// output goes.
class LocalRemoval final : public Output {
 public:
  LocalRemoval(std::shared_ptr<LocalFolder> parent, Destination to, bool sync)
      : parent_(std::move(parent)), to_(std::move(to)), sync_(sync) {}
  ~LocalRemoval() override { abort(); }

  std::vector<std::byte> token() const override { return {}; }  ///< No rank writes a part.
  void prepare() override {}
  void commit() override;
  void take_back() override;
  void abort() noexcept override;

 private:
  void move_back();

  const std::shared_ptr<LocalFolder> parent_;
  const Destination to_;
  const bool sync_;
  std::string aside_;  ///< Empty: nothing was moved.
};

}  // namespace shard
