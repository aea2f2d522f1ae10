/// \file
/// A box of a source piece as one rank asks another for it. Inside libshard/job only.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/core/arena.h"
#include "libshard/core/box.h"
#include "libshard/plan/plan.h"
#include "libshard/ranks/wire.h"

namespace shard {

/// `box` is counted from the corner of `piece`, whose own offsets are 0.
void write_request(WireWriter& to, const Piece& piece, const Box& box, std::int64_t element_bytes);

struct BoxRequest {
  Piece piece;
  Dims offsets, sizes;  ///< The box.
  std::int64_t element_bytes = 1, bytes = 0;
};

/// The requests of one message, and the numbers that they point to.
struct RequestList {
  std::vector<BoxRequest> boxes;
  std::unique_ptr<Arena> arena = std::make_unique<Arena>();
};
/// \throws Error kPeer  an invalid request: outside its piece, a piece outside the file, or larger than `limit_bytes`.
RequestList read_requests(std::span<const std::byte> message, const Catalog& source, std::int64_t limit_bytes);

}  // namespace shard
