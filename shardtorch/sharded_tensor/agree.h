/// \file
/// Steps that a rank may fail alone in, before a collective: its error goes where its data would have gone, so that no
/// rank waits for one that left.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libshard/ranks/group.h"

namespace shard {

/// What `make` returns on each member, by group rank. A collective. Where it throws, all ranks throw: the lowest
/// failing rank's error, of the same type (those of errors.h, or shard::Error; anything else becomes a c10::Error).
/// \throws Error kPeer  a rank is lost.
/// Cost: one all_gather of 64 bytes; where a piece does not fit in, another of pieces of any size.
std::vector<Bytes> all_gather_or_throw(Group& group, const std::function<Bytes()>& make);

/// Does `step` on all ranks; where it throws on one, all throw as above. A collective of a few bytes.
void agree(Group& group, const std::function<void()>& step);

/// As above; and what `step` returns, a call's arguments in words, must be the same on all ranks: as many everywhere.
/// \throws c10::ValueError  on all ranks: "dst=0 on rank: 1 does not match with dst=2 on rank: 0", of the first
///   argument that differs.
/// Cost: one all_gather of a digest; where ranks differ, another of the words.
void agree_on(Group& group, const std::function<std::vector<std::string>()>& step);

}  // namespace shard
