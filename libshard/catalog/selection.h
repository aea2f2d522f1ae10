/// \file
/// Which tensors and objects of a source take part, under which names and as which dtype. Pure.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "libshard/catalog/catalog.h"

namespace shard {

/// What takes part and how it is changed, in the order in which it applies.
struct SelectionOptions {
  std::vector<std::string> include{}, exclude{};  ///< Globs over source names.
  std::vector<std::string> strip_prefix{};
  std::vector<std::string> add_prefix{};
  std::vector<std::string> rename{};  ///< "REGEX=REPLACEMENT", RE2, \1, all matches. Cut at the first '=' that
                                      ///< has no backslash before it: `\=` in the pattern is a plain '='.
  std::vector<std::string> cast{};    ///< "GLOB=DTYPE" over resulting names; first match wins. Globs with
                                      ///< wildcards pass integers and bools by.
  bool keep_objects = true;
};

struct SelectedTensor {
  std::uint32_t source;  ///< Index into the source's tensors.
  DType dtype;           ///< Wanted.
  std::string_view name;
  Path path;  ///< Empty when it says no more than `name`.
};
struct SelectedObject {
  std::uint32_t source;
  std::string_view name;
  Path path;
};
struct Selection {
  std::vector<SelectedTensor> tensors;  ///< By resulting name, then source rank.
  std::vector<SelectedObject> objects;  ///< Empty without `keep_objects`.
  bool renamed = false;                 ///< Some name changed: containers are rebuilt from paths.
  std::shared_ptr<Arena> arena = std::make_shared<Arena>();
};

/// Applies the options. A renamed tensor keeps its path as far as whole parts were stripped or added (to a source
/// without any paths a prefix adds text, not a container), else its path is the one key of its new name.
/// \throws Error kInvalidArgument  a malformed rule, a prefix that no name has, a glob of `cast` that matches nothing,
///   two tensors with one resulting name.
/// \throws Error kUnsupported  a cast that does not exist (float4, float6, quantized, bits); two source paths share a
///   name that would have to be told apart.
Selection select(const Catalog& source, const SelectionOptions& options);

}  // namespace shard
