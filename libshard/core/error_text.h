/// \file An Error as text for people, as the command line and C++ programs both show it.
#pragma once

#include <string>

#include "libshard/core/error.h"

namespace shard {

struct ErrorLines {
  std::string headline;  ///< "rank 1: a.pt: tensor 'w': wrong dtype". Omits facts that the message contains.
  std::string why;       ///< The reason, and "expected 4, found 3" unless the reason has them. May be empty.
};
/// \param names_rank  False if there is only one rank.
ErrorLines lines_of(const Error& error, bool names_rank = true);

/// The whole error: the headline, then "  why:  ..." and "  hint: ..." if known, without a newline at the end.
/// Suggestions are not included, because each front end has its own words for them (error.h). Names from files are not
/// escaped.
std::string describe(const Error& error);

}  // namespace shard
