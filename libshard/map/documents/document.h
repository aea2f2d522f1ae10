/// \file
/// MapDocument: a `shardctl.layout/1` document that says how a framework stores a model: rules from logical tensors
/// (Hugging Face's names) to stored ones. docs/schemas.md has every key.
///
/// Terms: a *segment* is one of the logical tensors that a rule concatenates. Dimensions of `concat`, `shard` and `pad`
/// are those of a segment after its permutation, without stacked dimensions; operations are named from logical to
/// stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/map/documents/expression.h"
#include "libshard/catalog/split.h"
#include "libshard/core/dtype.h"
#include "libshard/map/documents/flatten.h"
#include "libshard/map/documents/name_template.h"

namespace shard {

/// A named number or text, and where it comes from.
struct MapVariable {
  std::string name;
  /// "config.json#/POINTER", "args.NAME", "stored#PATTERN" or "logical#PATTERN": the first that is there counts.
  std::vector<std::string> from{};
  /// Where nothing of `from` is there, the first that can be evaluated; they may name earlier variables.
  std::vector<Expression> values{};
  std::optional<std::string> word{};  ///< Where no expression can be.
};

/// A variable with the texts or numbers that it must have.
using MapCondition = std::pair<std::string, std::vector<std::string>>;

struct MapMeshAxis {
  std::string name;
  Expression size;  ///< May name variables, and `ranks`.
};

struct MapCut {
  std::size_t axis = 0;  ///< Index into the mesh.
  int dim = 0;
  CutRule split = CutRule::kEven;
  std::vector<Expression> widths{};  ///< Of kWidths, one a part.
};

struct MapConcat {
  int dim = 0;
  std::vector<Expression> sizes{};  ///< One a segment; none: `is_equal`, or known from the logical tensors alone.
  bool is_equal = false;
  Expression interleave{1};            ///< Groups.
  bool per_segment = false;            ///< Cuts are made in each segment.
  std::vector<Expression> replicas{};  ///< One a segment, or none: 1 each.
  /// One list a segment, or none: the width of each part of it, in place of the cut's split; empty where that counts.
  std::vector<std::vector<Expression>> widths{};
};

struct MapPad {
  enum class Fill : std::uint8_t {
    kZero,
    kLastRow,  ///< Repeats the last position, as replicas of it.
    kKeep,     ///< Zeros are made; undone is any size from the true one on, whatever the padding holds.
  };

  int dim = 0;
  Expression to{};  ///< May name `n`, the true size.
  Fill fill = Fill::kZero;
  std::optional<Expression> true_size{};
};

struct MapPermute {
  enum class Kind : std::uint8_t { kNone, kTranspose, kHalfToPairs, kPairsToHalf };

  Kind kind = Kind::kNone;
  Expression heads{1};
};

/// A tensor of one element for each block of another one: the scales of values that are quantised in blocks.
struct MapBlock {
  std::vector<NameTemplate> of;  ///< Logical names, one a segment.
  std::vector<Expression> shape;
};

struct MapStack {
  std::string index;
  int dim = 0;  ///< Of the stored tensor, without those of indices that are stacked by themselves.
};

/// Which coordinates of an axis hold a tensor.
struct MapOn {
  std::size_t axis = 0;
  std::vector<std::int64_t> coordinates{};  ///< Negative ones count from the end: -1 is the last.
};

/// What is done with replicas that are read.
enum class ReduceRule : std::uint8_t { kEqual, kFirst };

struct MapRule {
  std::string where;                  ///< "rule 'qkv'", for messages.
  std::vector<NameTemplate> logical;  ///< Segments.
  NameTemplate stored;
  std::vector<NameTemplate> others{};    ///< Stored names that are undone alike; with stored's placeholders in order.
  std::optional<NameTemplate> beside{};  ///< A logical name without which there the rule makes nothing.
  std::string match{};                   ///< A pattern of names that stay as they are; empty: templates.
  bool drops = false;                    ///< What `match` names is left out.
  std::optional<MapConcat> concat{};     ///< Set where there are several segments.
  std::vector<MapCut> shard{};
  std::optional<MapPad> pad{};
  std::vector<MapOn> on{};
  std::vector<MapStack> stack{};
  std::vector<MapPermute> permute{};  ///< One a segment.
  std::optional<MapBlock> block{};
  ReduceRule reduce = ReduceRule::kEqual;
  std::optional<DType> dtype{};      ///< Of what is stored: made tensors are converted to it, others are not undone.
  bool is_alias = false;             ///< Its stored tensor repeats what another rule stores.
  bool optional = false;             ///< May match nothing.
  std::vector<MapCondition> when{};  ///< All must hold for the rule to count.
  /// Index of a family of MapFlatten: what the rule makes lies in flat buffers, and under no name of its own.
  std::optional<std::size_t> family{};
};

/// How the numbers of an index lie on an axis, for names with `{NAME_local}` and `{NAME_chunk}`.
struct MapIndex {
  std::string name;
  std::optional<Expression> begin{};  ///< Set: names with numbers outside [begin, begin + count) are not of the rule.
  std::optional<Expression> count{};
  std::optional<std::size_t> axis{};
  CutRule split = CutRule::kEven;
  std::vector<Expression> counts{};  ///< By coordinate, in place of `split`.
  /// By part, as those of `split` are numbered, in place of it: its numbers in the order of their local ones.
  std::vector<std::vector<Expression>> table{};
  Expression chunks{1};  ///< Virtual pipeline stages.
  Expression offset{0};  ///< What `_local` numbers begin with.
  /// Where this holds, the index is the first dimension of what is stored under names with its placeholder, and its
  /// placeholder no part of them.
  std::optional<std::vector<MapCondition>> stacked{};
};

/// Tensors beside each of the model's, which are stored as it is: moments of an optimizer.
struct MapState {
  std::string name;
  NameTemplate logical, stored;  ///< With the placeholder {key}: the tensor's name.
  std::optional<DType> dtype{};  ///< As a rule's; that of the tensor's own rule does not count.
};

/// What the map would get wrong.
struct MapRefusal {
  std::vector<MapCondition> when;
  std::string because;
};

/// What kind of files ranks have.
enum class MapContainer : std::uint8_t { kTorch, kSafetensors };

/// Files of ranks: one for each combination of the coordinates that the path names.
struct MapFiles {
  std::string path;                   ///< How they are named, see file_names.h.
  std::vector<std::string> root{};    ///< Keys that lead to the tensors in each.
  std::vector<MapOn> writer{};        ///< The coordinates that own them: what other ranks hold is not stored.
  std::vector<std::string> states{};  ///< The states that lie there; none: the model's tensors.
  MapContainer container = MapContainer::kTorch;  ///< The same of all entries of a document.
};

struct MapDocument {
  std::string name;
  std::vector<MapVariable> vars;
  std::vector<MapMeshAxis> mesh;
  std::vector<MapFiles> files{};                           ///< None: the document does not say.
  std::vector<std::pair<std::string, std::string>> types;  ///< Placeholder and pattern.
  std::vector<MapIndex> index;
  std::vector<MapRule> rules;
  std::vector<MapState> states;
  std::vector<MapRefusal> refusals;
  std::optional<MapFlatten> flatten{};
  bool copies_unmatched = false;  ///< Names that no rule matches stay as they are; else they are an error.
  bool must_use_rules = true;     ///< A rule that matches nothing is an error unless it is optional; else a warning.
};

/// From JSON or YAML (document_text.h).
/// \throws Error kInvalidArgument  not such a document: naming the key and where it stands.
MapDocument parse_map_document(std::string_view text, const std::string& file);

}  // namespace shard
