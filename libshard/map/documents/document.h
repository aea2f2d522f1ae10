/// \file MapDocument: a `shardctl.layout/1` document that defines how a framework stores a model, as rules from logical
///   tensors (Hugging Face's names) to stored ones. docs/schemas.md has every key.
///
/// Terms: a *segment* is one of the logical tensors that a rule concatenates. Dimensions of `concat`, `shard`, `pad`
/// and `unflatten` are those of a segment after its permutation, without stacked dimensions. Operations are named from
/// logical to stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "libshard/catalog/layouts/split.h"
#include "libshard/core/dtype.h"
#include "libshard/map/documents/expression.h"
#include "libshard/map/documents/flatten.h"
#include "libshard/map/documents/name_template.h"

namespace shard {

/// A named number or text, and its sources.
struct MapVariable {
  std::string name;
  /// "config.json#/POINTER", "args.NAME", "stored#PATTERN" or "logical#PATTERN". The first one that exists is used.
  std::vector<std::string> from{};
  /// Used if nothing in `from` exists: the first expression that can be evaluated. Expressions may refer to earlier
  /// variables.
  std::vector<Expression> values{};
  std::optional<std::string> word{};  ///< Used if no expression can be evaluated.
};

/// A variable, and the texts or numbers that it may have.
using MapCondition = std::pair<std::string, std::vector<std::string>>;

struct MapMeshAxis {
  std::string name;
  Expression size;  ///< May refer to variables, and to `ranks`.
};

struct MapCut {
  std::size_t axis = 0;  ///< Index into the mesh.
  int dim = 0;
  CutRule split = CutRule::kEven;
  std::vector<Expression> widths{};  ///< For kWidths: one per part.
};

struct MapConcat {
  int dim = 0;
  std::vector<Expression> sizes{};  ///< One per segment. Empty: `is_equal`, or those of the logical tensors.
  bool is_equal = false;
  Expression interleave{1};            ///< The number of groups.
  bool per_segment = false;            ///< Whether each segment is sharded separately.
  std::vector<Expression> replicas{};  ///< One per segment, or empty: 1 each.
  /// One list per segment, or empty. A list has the width of each part and replaces the split of `shard`. An empty list
  /// does not.
  std::vector<std::vector<Expression>> widths{};
};

struct MapPad {
  enum class Fill : std::uint8_t {
    kZero,
    kLastRow,  ///< Repeats the last position, as replicas of it.
    kKeep,     ///< Writes zeros. Reading accepts any size from the true one up, and any content in the padding.
  };

  int dim = 0;
  Expression to{};  ///< May refer to `n`, the true size.
  Fill fill = Fill::kZero;
  std::optional<Expression> true_size{};
};

/// A rotary permutation of the rows of dimension 0, and then a transposition.
struct MapPermute {
  enum class Rotary : std::uint8_t { kNone, kHalfToPairs, kPairsToHalf };

  Rotary rotary = Rotary::kNone;
  Expression heads{1};
  bool transposes = false;  ///< Whether the last two dimensions are exchanged.
};

/// One dimension that is stored as two: n / size, and size.
struct MapUnflatten {
  int dim = 0;
  Expression size{};
};

/// Describes a tensor with one element per block of a different tensor: the scales of quantized blocks.
struct MapBlock {
  std::vector<NameTemplate> of;  ///< The logical names of the scaled tensors, one per segment.
  std::vector<Expression> shape;
};

struct MapStack {
  std::string index;
  int dim = 0;  ///< A dimension of the stored tensor, without indices that are stacked by themselves.
};

/// The coordinates of an axis that have a tensor.
struct MapOn {
  std::size_t axis = 0;
  std::vector<std::int64_t> coordinates{};  ///< Negative coordinates count from the end: -1 is the last.
};

/// The treatment of replicas when they are read.
enum class ReduceRule : std::uint8_t { kEqual, kFirst };

/// Tensors whose values change with those of a weight that is scaled.
enum class MapValues : std::uint8_t {
  kWeights,          ///< They change like the weight.
  kGradients,        ///< They are divided by the scale, such as first moments. Nothing is added.
  kSquaredGradients  ///< They are divided by the square of the scale, such as second moments.
};

/// The stored tensor is the logical one times `scale`, plus `add`.
struct MapArithmetic {
  Expression scale{1}, add{};           ///< Real numbers.
  std::optional<Expression> unscale{};  ///< The inverse of `scale`, by which undoing multiplies instead of dividing.
  MapValues values = MapValues::kWeights;
};

struct MapRule {
  std::string where;                  ///< Used in messages, for example "rule 'qkv'".
  std::vector<NameTemplate> logical;  ///< The names of the segments.
  NameTemplate stored;
  std::vector<NameTemplate> others{};    ///< Further stored names in reading, with the same placeholders in order.
  std::optional<NameTemplate> beside{};  ///< A logical name. Without it, the rule produces nothing.
  std::string match{};                   ///< A pattern of names that are copied unchanged, instead of templates.
  bool drops = false;                    ///< Whether tensors that `match` names are dropped.
  std::optional<MapConcat> concat{};     ///< Set if there are several segments.
  std::vector<MapCut> shard{};
  std::optional<MapPad> pad{};
  std::optional<MapUnflatten> unflatten{};  ///< Not along the padded dimension.
  std::vector<MapOn> on{};
  std::vector<MapStack> stack{};
  std::vector<MapPermute> permute{};  ///< One per segment.
  std::optional<MapBlock> block{};
  std::optional<MapArithmetic> arithmetic{};  ///< Not of an alias, nor with tensors in flat buffers.
  ReduceRule reduce = ReduceRule::kEqual;
  std::optional<DType> dtype{};      ///< The stored dtype. Written tensors are converted to it. Others are not read.
  bool is_alias = false;             ///< Whether its stored tensor repeats one that a different rule stores.
  bool optional = false;             ///< Whether it may match nothing.
  std::vector<MapCondition> when{};  ///< The rule applies only if all conditions are true.
  /// Index of a family in MapFlatten. The rule's tensors are stored in flat buffers, and have no stored names.
  std::optional<std::size_t> family{};
};

/// The distribution of an index's numbers over an axis, for names with `{NAME_local}` and `{NAME_chunk}`.
struct MapIndex {
  std::string name;
  std::optional<Expression> begin{};  ///< If set, a number must be in [begin, begin + count).
  std::optional<Expression> count{};
  std::optional<std::size_t> axis{};
  CutRule split = CutRule::kEven;
  std::vector<Expression> counts{};  ///< By coordinate. Replaces `split`.
  /// By part, numbered as in `split`, which it replaces: the numbers of a part in the order of their local ones.
  std::vector<std::vector<Expression>> table{};
  Expression chunks{1};  ///< Virtual pipeline stages.
  Expression offset{0};  ///< The first number of `_local`.
  /// If these conditions are true, the index is the first dimension of stored tensors whose names have its placeholder,
  /// and the placeholder is removed from the names.
  std::optional<std::vector<MapCondition>> stacked{};
};

/// Tensors that belong to each of the model's tensors and have the same layout: moments of an optimizer.
struct MapState {
  std::string name;
  NameTemplate logical, stored;       ///< Names with the placeholder {key}, which is the tensor's name.
  std::optional<DType> dtype{};       ///< See MapRule::dtype. The dtype of the tensor's own rule is not used.
  std::optional<MapValues> values{};  ///< Required if a rule has arithmetic.
};

/// A case that the map would convert wrongly, and therefore refuses.
struct MapRefusal {
  std::vector<MapCondition> when;
  std::string because;
};

/// The container of per-rank files.
enum class MapContainer : std::uint8_t { kTorch, kSafetensors };

/// Per-rank files: one for each combination of the coordinates in the path.
struct MapFiles {
  std::string path;                   ///< The template of their names, see file_names.h.
  std::vector<std::string> root{};    ///< The keys that lead to the tensors in each file.
  std::vector<MapOn> writer{};        ///< The coordinates that write the files. Copies on other ranks are not stored.
  std::vector<std::string> states{};  ///< The states in these files. Empty: the model's tensors.
  MapContainer container = MapContainer::kTorch;  ///< Equal in all entries of a document.
};

struct MapDocument {
  std::string name;
  std::vector<MapVariable> vars;
  std::vector<MapMeshAxis> mesh;
  std::vector<MapFiles> files{};                           ///< Empty: the document does not define files.
  std::vector<std::pair<std::string, std::string>> types;  ///< Pairs of a placeholder and its pattern.
  std::vector<MapIndex> index;
  std::vector<MapRule> rules;
  std::vector<MapState> states;
  std::vector<MapRefusal> refusals;
  std::optional<MapFlatten> flatten{};
  bool copies_unmatched = false;  ///< Names that no rule matches are copied unchanged, or are an error.
  bool must_use_rules = true;     ///< A rule without a match is an error if it is not optional, or a warning.

  bool has_variable(std::string_view variable) const;
};

/// Parses JSON or YAML (document_text.h).
/// \throws Error kInvalidArgument  the text is not such a document; the message names the key and its position.
MapDocument parse_map_document(std::string_view text, const std::string& file);

}  // namespace shard
