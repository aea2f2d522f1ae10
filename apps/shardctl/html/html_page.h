/// \file
/// The page of --html: a verb's JSON document in one HTML file that shows it. The file needs no network and no other
/// file, and its policy lets a browser run its own script only.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "apps/shardctl/request/request.h"
#include "apps/shardctl/session/session.h"
#include "libshard/core/json_writer.h"
#include "libshard/io/output.h"

namespace shard::app {

/// Ownership: borrows the session and `page`. Threads: one; of several ranks only rank 0 has a file.
class HtmlPage {
 public:
  /// Checks FILE and changes nothing yet. To be called before long work.
  /// \throws Error kExists  FILE exists and no --force; it is or is in a source, or is another file that the command
  ///   line names, by any link; kResource  its folder is absent
  HtmlPage(const Session& session, const PageRequest& page, const ReadRequest& read);

  /// Whether this rank writes a page.
  bool is_wanted() const { return store_ != nullptr; }
  /// Writes the page all or nothing; does nothing unless wanted. `render` writes the document, and is called twice: its
  /// bytes are counted first, so that a full disk is seen early and the document is never held in memory.
  /// \throws Error kResource  FILE is then as it was; kInterrupted
  void write(const std::function<void(JsonWriter&)>& render) const;

 private:
  const Session& session_;
  const std::string& path_;
  std::unique_ptr<OutputStore> store_;
};

/// A signal may end a reading verb at once, unless it is to write a page: that is cleaned up.
void allow_sudden_end(const Session& session, const PageRequest& page);

}  // namespace shard::app
