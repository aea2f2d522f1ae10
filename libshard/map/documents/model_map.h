/// \file ModelMap: a map document with the values of its variables. It finds the rules that apply to a name. Pure.
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

/// A name and the rule that applies to it.
struct NameMatch {
  std::size_t rule = 0;
  std::size_t segment = 0;          ///< For a logical name.
  std::vector<std::string> values;  ///< One text per placeholder of the side's template, or the whole name.
};

/// stored = logical * scale + add.
struct MapFactors {
  float scale = 1, add = 0;
  float unscale = 0;  ///< If it is not 0: logical = stored * unscale.

  bool changes() const { return scale != 1 || add != 0; }
  friend bool operator==(const MapFactors&, const MapFactors&) = default;
};

/// A tensor of a catalog whose values a map computes.
struct MapComputed {
  std::uint32_t tensor = 0;
  MapFactors factors;
};

/// Threads: any may look up a name.
class ModelMap {
 public:
  /// \throws Error kInvalidArgument  invalid sizes of the mesh; rules on none of its coordinates; types that are not
  ///   patterns; patterns that are too large; a missing variable that names or rules depend on
  /// \throws Error kUnsupported      the document refuses the values of the variables
  ModelMap(MapDocument document, MapVariables variables);
  ~ModelMap();
  ModelMap(ModelMap&&) noexcept;

  /// The document after its variables were resolved.
  const MapDocument& document() const { return document_; }
  const MapVariables& variables() const { return variables_; }
  const MapRule& rule(std::size_t index) const { return document_.rules[index]; }
  /// Sizes of the mesh's axes, slowest first; none without a mesh.
  const std::vector<std::int64_t>& mesh() const { return mesh_; }
  std::int64_t ranks() const { return ranks_; }  ///< The number of ranks in the mesh; 1 without one.
  std::vector<std::int64_t> coordinate_of(std::int64_t rank) const;

  /// The arithmetic of a rule for a tensor of `dtype`.
  /// \throws Error kInvalidArgument  a missing variable; the scale is 0, or a number is too large
  /// \throws Error kUnsupported      the rule changes values, and the dtype is not float32, float16 or bfloat16
  MapFactors factors_of(const MapRule& rule, std::string_view tensor, DType dtype) const;

  /// Whether a rule applies with the known variables.
  bool counts(const MapRule& rule) const { return variables_.allow(rule.when); }
  /// The rule of a stored name, or nothing if there is none.
  /// \throws Error kInvalidArgument  two rules match it, or the variable that decides is missing.
  std::optional<NameMatch> match_stored(std::string_view name) const;
  /// The rules of a logical name: at most one that stores it, and the rules that repeat it by `alias`. `is_there`
  /// returns whether a different logical name exists.
  /// \throws Error  as match_stored
  std::vector<NameMatch> match_logical(std::string_view name,
                                       const std::function<bool(const std::string&)>& is_there) const;

 private:
  class Names;
  /// The range of a placeholder's numbers that a rule accepts.
  struct Range {
    std::string index;
    std::int64_t begin, end;
  };
  void check_on(const MapRule& rule) const;
  bool in_range(const NameTemplate& names, const NameMatch& match) const;
  bool has_companion(const NameMatch& match, const std::function<bool(const std::string&)>& is_there) const;
  template <class Repeats>
  std::vector<NameMatch> decide(std::string_view name, std::vector<NameMatch> matches, const Repeats& repeats) const;

  MapDocument document_;
  MapVariables variables_;
  std::vector<std::int64_t> mesh_;
  std::int64_t ranks_ = 1;
  std::vector<Range> ranges_;
  std::unique_ptr<Names> stored_, logical_;
};

}  // namespace shard
