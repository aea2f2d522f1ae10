/// \file
/// ModelMap: a map document with its numbers, ready to be asked which rule a name falls under. Pure.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/map/document.h"
#include "libshard/map/variables.h"

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
  /// \throws Error kInvalidArgument  sizes of the mesh, types that are not patterns, patterns that are too large
  ModelMap(MapDocument document, MapVariables variables);
  ~ModelMap();
  ModelMap(ModelMap&&) noexcept;

  const MapDocument& document() const { return document_; }
  const MapVariables& variables() const { return variables_; }
  const MapRule& rule(std::size_t index) const { return document_.rules[index]; }
  /// Sizes of the mesh's axes, slowest first; none without a mesh.
  const std::vector<std::int64_t>& mesh() const { return mesh_; }
  std::int64_t ranks() const { return ranks_; }  ///< Of the mesh; 1 without one.
  std::vector<std::int64_t> coordinate_of(std::int64_t rank) const;

  /// Whether the known variables let a rule count.
  bool counts(const MapRule& rule) const;
  /// The rule of a stored name; nothing where there is none.
  /// \throws Error kInvalidArgument  two rules match it, or the variable that would decide is missing.
  std::optional<NameMatch> match_stored(std::string_view name) const;
  /// The rules of a logical name: one, and the rules that say it once more by `alias`.
  /// \throws Error  as match_stored
  std::vector<NameMatch> match_logical(std::string_view name) const;

 private:
  class Names;
  std::vector<NameMatch> decide(std::string_view name, std::vector<NameMatch> matches) const;

  MapDocument document_;
  MapVariables variables_;
  std::vector<std::int64_t> mesh_;
  std::int64_t ranks_ = 1;
  std::unique_ptr<Names> stored_, logical_;
};

}  // namespace shard
