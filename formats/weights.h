/// \file
/// Which of a parameter's copies is read.
#pragma once

namespace shard {

/// Which copy of each parameter to read from a mixed-precision checkpoint.
enum class Weights {
  kMasters,  ///< The optimizer's, of full precision.
  kModule,   ///< The model's own, mostly of 16 bits.
};

}  // namespace shard
