/// \file
/// Runs steps that may fail on a single rank before a collective. The failing rank sends its error instead of its data,
/// so no rank waits for one that has left.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "libshard/ranks/group.h"

namespace shard {

/// Arguments of a call, or facts about its tensors, as text: "dst=0", "size=[4, 4]".
using Words = std::vector<std::string>;

/// The results of `make` on each member, by group rank. A collective. If `make` throws, all ranks throw the error of
/// the lowest failing rank, with the same type (those of errors.h, or shard::Error; any other exception becomes a
/// c10::Error). `facts` must be the same on all ranks. They are compared first. If they differ, no error of `make` is
/// thrown.
/// \throws c10::ValueError  on all ranks, as agree_on: `facts` differ. Error kPeer  a rank died.
/// Cost: one all_gather of 96 bytes. If a piece does not fit, a second one with pieces of any size. If facts differ, a
/// second one with the facts.
std::vector<Bytes> all_gather_or_throw(Group& group, const std::function<Bytes()>& make, const Words& facts = {});

/// Runs `step` on all ranks. If it throws on one, all throw as above. A collective of a few bytes.
void agree(Group& group, const std::function<void()>& step);

/// Does the same for a `step` that returns a call's arguments as text. They must also be the same on all ranks, and
/// equally many.
/// \throws c10::ValueError  on all ranks: "dst=0 on rank: 1 does not match with dst=2 on rank: 0", for the first
///   argument that differs. `facts` are compared before, as by all_gather_or_throw.
/// Cost: one all_gather of digests. If ranks differ, a second one with the texts.
void agree_on(Group& group, const std::function<Words()>& step, const Words& facts = {});

}  // namespace shard
