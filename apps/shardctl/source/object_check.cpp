#include "apps/shardctl/source/object_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "apps/shardctl/request/command_text.h"
#include "apps/shardctl/source/source.h"
#include "apps/shardctl/text/value_text.h"
#include "formats/parts/pickle/foreign_holder.h"
#include "formats/torch/foreign_classes.h"
#include "formats/torch/saved_file.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/originals.h"
#include "libshard/catalog/selection/glob.h"
#include "libshard/core/error.h"
#include "libshard/core/hash_table.h"
#include "libshard/core/value_walk.h"
#include "libshard/export/model_part.h"

namespace shard::app {

namespace {

constexpr std::size_t kMaxHintBytes = 2000;  ///< Longest list of options in a hint.

/// The reason why an object cannot be used as a value.
struct UnwritableObject {
  std::string is;              ///< "is a sparse tensor"; empty: no reason.
  bool droppable = false;      ///< --objects drop skips it.
  bool holds_tensors = false;  ///< Skipping it also skips tensors.
};

/// Searches in the objects of one catalog. Unknown classes in a value that several objects share are counted only once,
/// tensors for each of the objects.
struct ObjectSearch {
  explicit ObjectSearch(const Catalog& catalog) : hidden(*catalog.arena) {}
  VisitedSet met;
  torch_save::HiddenTensors hidden;
};

UnwritableObject unwritable(const Object& object, const Originals* originals, ObjectSearch& search) {
  if (object.value == nullptr) return {};
  const std::string kind = foreign_tensor(object.value);
  const bool is_subclass = !torch_save::tensor_subclass(*object.value).empty();
  // No --exclude can name the root, so only --objects drop can skip it.
  if (!kind.empty()) return {"is a " + kind, is_subclass && object.name.empty(), true};
  const torch_save::Opaques found = torch_save::find_opaques(*object.value, search.met, originals);
  const bool holds_tensors = found.holding != nullptr || search.hidden.holds_unlisted(*object.value);
  if (found.first == nullptr) {
    if (!holds_tensors) return {};
    return {"contains tensors", true, true};
  }
  const Value& type = found.holding != nullptr ? *found.holding : *found.first;
  if (type.module() == "torch" && type.text() == "Tensor") return {"is a torch.Tensor inside an object", false, true};
  if (type.module() == "h5py" && type.text().starts_with("Dataset (")) {
    return {fmt::format("is an h5py.{}", type.text()), false, true};
  }
  const bool is_own = &type == object.value || &type == object.value->callee();
  return {fmt::format("{} the unknown class {}.{}{}", is_own ? "is of" : "contains a value of", type.module(),
                      type.text(), holds_tensors ? " and contains tensors" : ""),
          true, holds_tensors};
}

/// An --exclude for each name, quoted for a shell.
std::string exclude_words(const std::vector<std::string>& names) {
  std::string words;
  for (const std::string& name : names) {
    words += fmt::format("{}--exclude {}", words.empty() ? "" : " ", shell_quoted(glob_of_name(name)));
  }
  return words;
}

/// The unusable objects in a selection.
struct UnwritableReport {
  std::string first, is;  ///< Name of the first one, and its reason.
  std::size_t count = 0;
  std::vector<std::string> excludes;  ///< Names that only --exclude skips.
  bool must_drop = false;             ///< --objects drop is needed to skip some objects.
  bool is_whole_model = false;        ///< The first one may be a module, and there are no tensors beside it.

  Error error(const std::vector<std::string>& arguments, std::string_view done) const {
    const std::string more =
        count > 1 ? "; the same is true of " + plural(static_cast<std::int64_t>(count) - 1, "other") : std::string();
    Error error(ErrorCode::kUnsupported, fmt::format("'{}' {}, which cannot be {}{}", first, is, done, more));
    error.of_tensor(first);
    if (is_whole_model) return error.hint(torch_save::kModuleHint);
    std::string words = exclude_words(excludes);
    if (words.size() > kMaxHintBytes) return error.hint("exclude them by pattern: --exclude '**.NAME'");
    if (must_drop) words += excludes.empty() ? "--objects drop" : " --objects drop";
    return error.hint(repeat_command(arguments, words));
  }
};

/// The container of the model's tensors ("model"); empty if there is none, or if it is not certain.
std::string model_container(const Catalog& catalog) try {
  return find_model(catalog, [](std::string_view) { return true; }).container;
} catch (const Error&) {
  return {};  // The source contains adapters, or names clash.
}

/// The selected objects, as if objects were kept.
std::vector<SelectedObject> chosen_objects(const Catalog& catalog, SelectionOptions selection) {
  selection.keep_objects = true;
  return choose_unchecked(catalog, selection).objects;
}

}  // namespace

/// Throws the fault of an object that the catalog does not list, because no selection can have skipped it.
void throw_unlisted(const Catalog& catalog, const ObjectFaults& faults) {
  HashMap<std::string, bool> listed;
  for (const Object& object : catalog.objects) listed.try_emplace(std::string(object.name), true);
  for (const auto& fault : faults.all()) {
    if (listed.find(fault.key) == nullptr) throw Error(fault.value);
  }
}

FirstNames check_objects(const Catalog& catalog, const ObjectCheck& check) {
  const Originals* originals = catalog.originals.get();
  if (originals != nullptr && originals->format != check.written_as) originals = nullptr;
  const bool has_faults = check.faults != nullptr && !check.faults->empty();
  if (has_faults) throw_unlisted(catalog, *check.faults);
  ObjectSearch checked(catalog);
  const auto usable = [&](const Object& object) { return unwritable(object, originals, checked).is.empty(); };
  FirstNames dropped;
  if (!has_faults && std::all_of(catalog.objects.begin(), catalog.objects.end(), usable)) return dropped;
  const std::string container = check.may_drop_tensors ? model_container(catalog) : std::string();
  ObjectSearch search(catalog);
  UnwritableReport refused;
  for (const SelectedObject& each : chosen_objects(catalog, check.selection)) {
    const Object& object = catalog.objects[each.source];
    if (const Error* const fault = has_faults ? check.faults->find(object.name) : nullptr) throw Error(*fault);
    UnwritableObject found = unwritable(object, originals, search);
    const bool is_in_model = !container.empty() && object.name.starts_with(container + ".");
    if (found.holds_tensors) found.droppable = found.droppable && check.may_drop_tensors && !is_in_model;
    const std::string name(object.name);  // --exclude matches source names.
    const bool must_exclude = !name.empty() && (!found.droppable || found.holds_tensors);
    refused.must_drop = refused.must_drop || (found.is.empty() ? !check.takes_objects : !must_exclude);
    if (found.is.empty()) continue;
    if (found.droppable && !check.selection.keep_objects) {
      if (found.holds_tensors) dropped.add(name);
      continue;
    }
    if (refused.count++ == 0) {
      refused.first = name, refused.is = found.is;
      refused.is_whole_model = catalog.tensors.empty() && pickle::is_foreign_holder(*object.value);
    }
    if (must_exclude && (refused.excludes.empty() || refused.excludes.back() != name)) refused.excludes.push_back(name);
  }
  if (refused.count > 0) throw refused.error(check.arguments, check.done);
  return dropped;
}

std::string dropped_tensors_text(const FirstNames& dropped) {
  if (dropped.count() == 0) return {};
  return fmt::format("skipped {}: {}",
                     plural(static_cast<std::int64_t>(dropped.count()), "object with tensors", "objects with tensors"),
                     dropped.text());
}

FirstNames objects_with_tensors(const Catalog& catalog, const std::function<bool(std::uint32_t object)>& takes) {
  FirstNames names;
  ObjectSearch search(catalog);
  for (std::uint32_t i = 0; i < catalog.objects.size(); ++i) {
    if (takes(i) && unwritable(catalog.objects[i], nullptr, search).holds_tensors) names.add(catalog.objects[i].name);
  }
  return names;
}

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
    if (object.value == nullptr) continue;
    const std::set<std::string> classes = opaque_classes(*object.value, met);
    const std::string kind = foreign_tensor(object.value);
    const auto is_kinds = [&](const std::string& name) { return kind.ends_with(name); };
    if (!kind.empty()) {
      Error error(ErrorCode::kUnsupported, fmt::format("the value is a {}", kind));
      if (std::ranges::any_of(classes, is_kinds)) error.of_kind(FindingKind::kForbiddenGlobal);
      findings.report(error.of_tensor(object.name).found(kind));
    }
    for (const std::string& name : classes) {
      if (is_kinds(name)) continue;  // A tensor subclass, reported with its class.
      findings.report(
          Error(ErrorCode::kUnsupported, "the value is, or contains, a value of a class that is not on the list")
              .of_tensor(object.name)
              .of_kind(FindingKind::kForbiddenGlobal)
              .found(name));
    }
  }
}

}  // namespace shard::app
