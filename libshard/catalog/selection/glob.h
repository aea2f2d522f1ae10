/// \file Globs over dotted names: `*` matches inside one dotted part, `**` also across dots, `?` is one character other
///   than a dot, `[...]` is a class (`[!...]` is its complement, without dots). Bytewise.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace shard {

/// Matches many globs against whole names at once.
///
/// The globs form a tree of steps (a character, a class, a star) in which equal beginnings are shared. One pass over a
/// name tracks the nodes that its characters so far can reach. So n globs that begin with the same or with different
/// literals cost little more per name than a single glob. Cost of a match: O(|name|) times those nodes, whose number is
/// at most that of the globs' characters. Threads: safe once all globs are added.
class GlobSet {
 public:
  GlobSet() = default;
  explicit GlobSet(const std::vector<std::string>& globs);

  /// Globs are numbered from 0 in this order.
  void add(std::string_view glob);
  bool empty() const { return same_end_.empty(); }
  std::size_t size() const { return same_end_.size(); }
  /// The numbers of the globs that match the whole name, in rising order.
  std::vector<std::size_t> matching(std::string_view name) const;
  bool matches(std::string_view name) const;

 private:
  enum class Kind : std::uint8_t { kCharacter, kClass, kStar, kDoubleStar };
  static constexpr std::uint32_t kNone = 0xFFFFFFFF;
  using Nodes = std::vector<std::uint32_t>;
  struct Step {
    Kind kind;
    std::string_view text;  ///< The character, "?", or the class with its brackets.
  };
  /// A step, reached after all those above it in the tree.
  struct Node {
    Kind kind = Kind::kCharacter;
    std::string text{};
    std::uint32_t first_child = kNone, next_sibling = kNone;
    std::uint32_t last_glob = kNone;  ///< The last glob that ends at this node. `same_end_` has the others.
  };

  static Step step_at(std::string_view glob, std::size_t at);
  std::uint32_t child(std::uint32_t node, const Step& step);
  void enter(std::uint32_t node, Nodes& active) const;
  Nodes reached(std::string_view name) const;

  std::vector<Node> nodes_{1};
  std::vector<std::uint32_t> same_end_;  ///< By glob: the previous one that ends at the same node.
};

/// The glob that matches only `name`.
std::string glob_of_name(std::string_view name);

/// The glob of `name` and of those that differ from it only in numbers, as the layers' names do.
std::string glob_of_layers(std::string_view name);

/// Replaces the stars of `glob` by ones that match across dots: "*norm*" becomes "**norm**". Users who know a shell's
/// globs often omit the second star.
std::string crossing_dots(std::string_view glob);

}  // namespace shard
