/// \file
/// Man pages, made from what help is made from: the table of verbs, the tree of options, the exit codes.
#pragma once

#include <string>
#include <string_view>

#include "apps/shardctl/arguments/verb.h"

namespace shard::app {

/// The page shardctl-VERB(1) in the macros of man(7); shardctl(1) where `verb` is null. ASCII, ready for a file.
/// `date`: of the page's foot, as "2026-01-31"; may be empty.
std::string man_page(const Verb* verb, std::string_view date);

}  // namespace shard::app
