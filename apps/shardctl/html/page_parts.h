/// \file
/// What is the same in every page of --html: the files of apps/shardctl/html, embedded by cmake/embed_page.cmake.
#pragma once

#include <string_view>

namespace shard::app {

/// page.html. `@policy@`, `@style@`, `@document@` and `@script@` stand in it once each, in this order, for what goes
/// there.
extern const std::string_view kPageFrame;
extern const std::string_view kPageStyle;   ///< page.css
extern const std::string_view kPageScript;  ///< The scripts, one after another.

}  // namespace shard::app
