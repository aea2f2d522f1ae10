/// \file
/// ModelMap: a map document with its numbers, ready to be asked which rule a name falls under. Pure.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/map/documents/document.h"
#include "libshard/map/documents/variables.h"

namespace shard {

/// A name and the rule that it falls under.
struct NameMatch {
  std::size_t rule = 0;
  std::size_t segment = 0;          ///< Of a logical name.
  std::vector<std::string> values;  ///< One a placeholder of the side's template. Of a `match` rule: the name.
};

/// Threads: a name may be asked for by any.
class ModelMap {
 public:
  /// \throws Error kInvalidArgument  sizes of the mesh, rules on none of its coordinates, types that are not patterns,
  /// patterns that are too large, a
  ///   variable that names or rules depend on is missing
  /// \throws Error kUnsupported      the document refuses what the variables say
  ModelMap(MapDocument document, MapVariables variables);
  ~ModelMap();
  ModelMap(ModelMap&&) noexcept;

  /// The document after its variables were resolved.
  const MapDocument& document() const { return document_; }
  const MapVariables& variables() const { return variables_; }
  const MapRule& rule(std::size_t index) const { return document_.rules[index]; }
  /// Sizes of the mesh's axes, slowest first; none without a mesh.
  const std::vector<std::int64_t>& mesh() const { return mesh_; }
  std::int64_t ranks() const { return ranks_; }  ///< Of the mesh; 1 without one.
  std::vector<std::int64_t> coordinate_of(std::int64_t rank) const;

  /// Whether the known variables let a rule count.
  bool counts(const MapRule& rule) const { return variables_.allow(rule.when); }
  /// The rule of a stored name; nothing where there is none.
  /// \throws Error kInvalidArgument  two rules match it, or the variable that would decide is missing.
  std::optional<NameMatch> match_stored(std::string_view name) const;
  /// The rules of a logical name: one, and the rules that say it once more by `alias`. `is_there` says of another
  /// logical name whether it is there.
  /// \throws Error  as match_stored
  std::vector<NameMatch> match_logical(std::string_view name,
                                       const std::function<bool(const std::string&)>& is_there) const;

 private:
  class Names;
  /// Which numbers of a placeholder are a rule's.
  struct Range {
    std::string index;
    std::int64_t begin, end;
  };
  void check_on(const MapRule& rule) const;
  bool in_range(const NameTemplate& names, const NameMatch& match) const;
  bool has_companion(const NameMatch& match, const std::function<bool(const std::string&)>& is_there) const;
  std::vector<NameMatch> decide(std::string_view name, std::vector<NameMatch> matches) const;

  MapDocument document_;
  MapVariables variables_;
  std::vector<std::int64_t> mesh_;
  std::int64_t ranks_ = 1;
  std::vector<Range> ranges_;
  std::unique_ptr<Names> stored_, logical_;
};

}  // namespace shard
