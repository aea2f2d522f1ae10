/// \file Selects tensors and objects of a source, and defines their names and dtypes. Pure.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// Options of a selection, in the order in which they apply.
struct SelectionOptions {
  std::vector<std::string> include{}, exclude{};  ///< Globs over source names.
  std::vector<std::string> strip_prefix{};
  std::vector<std::string> add_prefix{};
  std::vector<std::string> rename{};  ///< "REGEX=REPLACEMENT" with RE2 syntax and \1; replaces all matches. Split at
                                      ///< the first '=' without a backslash before it: `\=` in the pattern is a literal
                                      ///< '='.
  std::vector<std::string> cast{};    ///< "GLOB=DTYPE" over new names; first match. Wildcards skip integers and bools.
  bool keep_objects = true;
};

/// Whether `include` and `exclude`, which has precedence, select a source name. Threads: any
std::function<bool(std::string_view)> name_filter(const SelectionOptions& options);

struct SelectedTensor {
  std::uint32_t source;  ///< Index into the source's tensors.
  DType dtype;           ///< The requested dtype.
  std::string_view name;
  Path path;  ///< Empty if it is equivalent to `name`.
};
struct SelectedObject {
  std::uint32_t source;
  std::string_view name;
  Path path;
};
struct Selection {
  std::vector<SelectedTensor> tensors;  ///< Sorted by resulting name, then source rank.
  std::vector<SelectedObject> objects;  ///< Empty without `keep_objects`.
  bool renamed = false;                 ///< Whether a name changed. Containers are then rebuilt from paths.
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
};

/// Applies the options. A renamed entry keeps the parts of its path with which the new name still begins and ends.
/// Between them, each container becomes one of as many words, and the rest is one key. (If the source has no paths, a
/// prefix adds text, not a container.)
/// \throws Error kInvalidArgument  a malformed rule; renaming rules that are too large together; an empty prefix to
///   strip, or one that no name has; a glob of `cast` that matches nothing; two tensors or objects with one resulting
///   name; a new name that is not UTF-8, if the old one is
/// \throws Error kUnsupported  a cast that does not exist (float4, float6, quantized, bits); two source paths share a
///   name that would have to be distinguished.
Selection select(const Catalog& source, const SelectionOptions& options);

}  // namespace shard
