/// \file
/// The page of --html: one HTML file that contains a verb's JSON document and shows it. It needs no network and no
/// other file, and its policy allows only its own script to run.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/core/json_writer.h"
#include "libshard/io/output.h"

namespace shard::app {

/// Ownership: borrows the session and `page`. Threads: one. Only rank 0 has a file.
class HtmlPage {
 public:
  /// Checks FILE without changing anything. Call it before long work.
  /// \throws Error kExists  FILE exists without --force; it is or is in a source; or it is a different file that the
  ///   command line names, by any link; kResource  its folder does not exist
  HtmlPage(const Session& session, const PageRequest& page, const ReadRequest& read);

  /// Whether this rank writes a page.
  bool is_wanted() const { return store_ != nullptr; }
  /// Writes the complete page, or leaves FILE as it was. Does nothing unless is_wanted(). Calls `render`, which writes
  /// the document, twice. The first call only counts the bytes, so that a full disk is noticed early and memory never
  /// holds the document.
  /// \throws Error kResource  FILE is then as it was; kInterrupted
  void write(const std::function<void(JsonWriter&)>& render) const;

 private:
  const Session& session_;
  const std::string& path_;
  std::unique_ptr<OutputStore> store_;
};

/// Lets a signal end a reading verb at once, unless the verb is to write a page, which needs cleanup.
void allow_sudden_end(const Session& session, const PageRequest& page);

}  // namespace shard::app
