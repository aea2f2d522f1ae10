#include "apps/shardctl/source/unread_values.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <utility>

#include "apps/shardctl/text/value_text.h"
#include "libshard/core/visited.h"

namespace shard::app {
namespace {

/// The class of an opaque value. Empty for a tensor in an object, which has no class name, and for a dataset of HDF5,
/// whose reader has warned already.
std::string class_of(const Value& opaque) {
  if (opaque.module() == "torch" || opaque.module() == "h5py") return {};
  return fmt::format("{}.{}", opaque.module(), opaque.text());
}

/// The classes of opaque values in `value` that no earlier call visited.
std::set<std::string> opaque_classes(const Value& value, VisitedSet& met) {
  std::set<std::string> classes;
  ValueWalk walk(value, &met);
  while (const Value* const next = walk.next()) {
    if (next->kind != ValueKind::kOpaque) continue;
    if (std::string name = class_of(*next); !name.empty()) classes.insert(std::move(name));
    walk.skip_children();
  }
  return classes;
}

}  // namespace

void report_unread_values(const Catalog& catalog, Findings& findings) {
  VisitedSet met;
  for (const Object& object : catalog.objects) {
    if (const std::string kind = foreign_tensor(object.value); !kind.empty()) {
      findings.report(
          Error(ErrorCode::kUnsupported, fmt::format("the value is a {}", kind)).of_tensor(object.name).found(kind));
    }
    if (object.value == nullptr) continue;
    for (const std::string& name : opaque_classes(*object.value, met)) {
      findings.report(Error(ErrorCode::kUnsupported, "the value is of a class that is not on the list, or holds one")
                          .of_tensor(object.name)
                          .of_kind(FindingKind::kForbiddenGlobal)
                          .found(name));
    }
  }
}

}  // namespace shard::app
