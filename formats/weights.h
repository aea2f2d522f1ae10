/// \file
/// Which of a parameter's copies is read.
#pragma once

namespace shard {

/// Which of the copies that a checkpoint of mixed precision has of a parameter is read.
enum class Weights {
  kMasters,  ///< The optimizer's, of full precision.
  kModule,   ///< The model's own, mostly of 16 bits.
};

}  // namespace shard
