/// \file Computes names and paths after prefixes are stripped and added and renaming rules are applied. Inside
///   libshard/catalog only.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/selection.h"
#include "libshard/core/hash_table.h"

namespace shard {

struct NamedPath {
  std::string_view name;
  Path path;
};

/// The options' renaming rules, compiled. The cost of a name depends on its own changes, not on the number of rules.
class Renaming {
 public:
  /// \param nested  whether some path of the source has several parts, so that an added prefix becomes a container.
  /// \throws Error kInvalidArgument  a malformed renaming rule.
  Renaming(const SelectionOptions& options, bool nested, Arena& arena);
  ~Renaming();
  bool changes_names() const;
  /// The resulting name and path of an entry. New names and paths are allocated in the arena.
  NamedPath apply(NamedPath entry);
  /// \throws Error kInvalidArgument  a prefix to strip that no entry had.
  void check_used() const;

 private:
  class Rules;
  std::size_t prefix_of(std::string_view name, std::size_t next) const;
  void strip(NamedPath& entry, std::size_t prefix);
  void add(NamedPath& entry, std::string_view prefix);

  const SelectionOptions& options_;
  const bool nested_;
  Arena& arena_;
  std::vector<bool> used_;                                   ///< Whether each prefix to strip was used.
  HashMap<std::string, std::vector<std::size_t>> prefixes_;  ///< The numbers of each prefix, in rising order.
  std::vector<std::size_t> prefix_lengths_;                  ///< In rising order.
  std::unique_ptr<Rules> rules_;
  std::string scratch_;
};

}  // namespace shard
