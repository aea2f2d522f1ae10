#include "libshard/map/passes/undo_flat.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/box.h"
#include "libshard/map/arithmetic/flat_buffers.h"
#include "libshard/map/documents/resolve.h"
#include "libshard/map/documents/wrong.h"
#include "libshard/map/matching/map_names.h"

namespace shard {

Error held_twice(std::string_view tensor, std::int64_t rank) {
  const std::string holder = rank < 0 ? "the checkpoint" : fmt::format("rank {}", rank);
  return wrong(fmt::format("cannot map '{}': {} stores it twice", tensor, holder)).of_tensor(tensor);
}

Error part_missing(std::string_view tensor, std::int64_t rank) {
  return Error(ErrorCode::kNotFound, fmt::format("rank {} lacks its part of '{}'", rank, tensor))
      .of_tensor(tensor)
      .of_rank(static_cast<int>(rank));
}

Error dtypes_differ(std::string_view tensor, DType expected, DType found) {
  return Error(ErrorCode::kCorruption, fmt::format("ranks store '{}' with different dtypes", tensor))
      .of_tensor(tensor)
      .of_kind(FindingKind::kDtypeMismatch)
      .expected(dtype_name(expected))
      .found(dtype_name(found));
}

namespace {

constexpr std::int64_t kMaxStated = 1 << 20;  ///< The limit on names of one entry in `shapes`.

std::string key_of(std::int64_t rank, std::string_view name) { return fmt::format("{} {}", rank, name); }

/// The logical name of a tensor's state.
std::string state_name(const std::string& state, std::string_view name) {
  return state.empty() ? std::string(name) : flat_state(state).logical.fill(std::vector{name});
}

/// Calls `visit` with each name that a template can have.
template <class Visit>
void for_each_stated(const ModelMap& map, const NameTemplate& names, Visit&& visit) {
  std::vector<std::int64_t> begins, counts;
  std::int64_t all = 1;
  for (const std::string& placeholder : names.placeholders()) {
    const auto index = std::ranges::find(map.document().index, placeholder, &MapIndex::name);
    if (index == map.document().index.end() || !index->count) {
      throw wrong(fmt::format("the map's flatten.shapes has '{}': '{{{}}}' is not an index with a count", names.text(),
                              placeholder));
    }
    begins.push_back(index->begin ? map.variables().evaluate(*index->begin) : 0);
    counts.push_back(map.variables().evaluate(*index->count));
    if (counts.back() < 1) return;
    if (counts.back() > kMaxStated / all)
      throw wrong("the map's flatten.shapes expands to too many names").found(counts.back());
    all *= counts.back();
  }
  std::vector<std::int64_t> at(counts.size());
  do {
    std::vector<std::string> texts;
    for (std::size_t i = 0; i < at.size(); ++i) texts.push_back(std::to_string(begins[i] + at[i]));
    const std::vector<std::string_view> values(texts.begin(), texts.end());
    visit(names.fill(values));
  } while (!at.empty() && next_index<std::int64_t>(at, counts) >= 0);
}

}  // namespace

FlatUndo::FlatUndo(const Catalog& stored, const ModelMap& map, Arena& arena)
    : stored_(stored), map_(map), flatten_(*map.document().flatten), arena_(arena) {
  for (const FlatFamily& family : flatten_.families) {
    const auto kind_of = [](const std::string& placeholder) { return placeholder == "bucket" ? "[0-9]+" : ".*"; };
    families_.push_back({std::make_unique<RE2>(family.stored.pattern(kind_of), quiet_patterns())});
    if (!families_.back().names->ok()) throw wrong("the names of the map's flatten do not form a regular expression");
  }
}

bool FlatUndo::take(std::uint32_t index) {
  const Tensor& tensor = stored_.tensors[index];
  const auto family =
      std::ranges::find_if(families_, [&](const Family& each) { return RE2::FullMatch(tensor.name, *each.names); });
  if (family == families_.end()) return false;
  if (!family->is_there) family->dtype = tensor.dtype;
  family->is_there = true;
  if (found_.try_emplace(key_of(tensor.rank, tensor.name), index).is_new) return true;
  throw held_twice(tensor.name, tensor.rank);
}

/// The names and sizes of buffers do not show the tensors in them. So a catalog of the logical tensors, whose shapes
/// are known otherwise, is mapped on paper. This gives the buffers and the position of each tensor in them.
void FlatUndo::run(std::span<const Known> known) {
  Catalog catalog;
  for (std::size_t i = 0; i < families_.size(); ++i) {
    const bool is_model = flatten_.families[i].state.empty();
    if (!is_model && !families_[i].is_there) continue;
    if (flatten_.shapes.empty()) {
      const bool has_known = !is_model && !flatten_.families.front().state.empty();
      if (!has_known) {
        throw wrong(
            "cannot undo the map's flatten: the document does not state the shapes of the tensors in flat buffers")
            .because("it has no key 'shapes'");
      }
      add_like(i, known, catalog);
    } else {
      add_stated(i, catalog);
    }
  }
  if (catalog.tensors.empty()) return;
  Selection all;
  for (std::uint32_t i = 0; i < catalog.tensors.size(); ++i) {
    all.tensors.push_back({i, catalog.tensors[i].dtype, catalog.tensors[i].name, {}});
  }
  paper_ = std::shared_ptr<AppliedMap>(new AppliedMap(catalog, all, map_, true));
  if (paper_->flat_ == nullptr) return paper_.reset();
  find_buffers();
}

void FlatUndo::add(std::string_view name, std::span<const std::int64_t> shape, DType dtype, Catalog& catalog) {
  Tensor tensor;
  tensor.name = catalog.arena->copy(name);
  tensor.shape = catalog.arena->dims(shape);
  tensor.dtype = dtype;
  catalog.tensors.push_back(tensor);
}

void FlatUndo::add_stated(std::size_t family, Catalog& catalog) {
  for (const auto& [names, sizes] : flatten_.shapes) {
    std::vector<std::int64_t> shape;
    for (const Expression& size : sizes) {
      shape.push_back(map_.variables().evaluate(size));
      if (shape.back() < 0)
        throw wrong(fmt::format("the map's flatten.shapes has a negative size of '{}'", names.text()));
    }
    for_each_stated(map_, names, [&](const std::string& name) {
      add(state_name(flatten_.families[family].state, name), shape, families_[family].dtype, catalog);
    });
  }
}

/// Adds the states of the known tensors that are in a group and in the order.
void FlatUndo::add_like(std::size_t family, std::span<const Known> known, Catalog& catalog) {
  const MapNames names(map_);
  const FlatKeys keys(flatten_);
  HashSet<std::string_view> there;
  for (const Known& tensor : known) {
    if (!there.insert(tensor.name)) continue;
    const std::string name = state_name(flatten_.families[family].state, tensor.name);
    const std::vector<NameMatch> matches = map_.match_logical(name, [](const std::string&) { return true; });
    const auto is_kept = [&](const NameMatch& match) {
      return map_.rule(match.rule).family &&
             keys.find(names.stored_name(match.rule, names.values_of_logical(match).first));
    };
    if (std::ranges::any_of(matches, is_kept)) add(name, tensor.shape, families_[family].dtype, catalog);
  }
}

/// Replaces the buffers on paper by those of the checkpoint. All of them must exist, and the checkpoint must have no
/// others with elements.
void FlatUndo::find_buffers() {
  for (const FlatBuffer& buffer : paper_->flat_->buffers()) buffer_of_.push_back(find_buffer(buffer));
  for (const auto& [key, index] : found_.entries()) {
    if (used_.contains(index) || is_empty(stored_.tensors[index].shape)) continue;
    throw wrong(fmt::format("cannot map '{}': the map's flatten does not produce it", stored_.tensors[index].name))
        .of_tensor(stored_.tensors[index].name)
        .of_rank(stored_.tensors[index].rank);
  }
  find_dtypes();
  for (AppliedMap::Entry& entry : paper_->entries_) {
    if (entry.is_dropped) continue;
    for (MapLink& link : entry.links) {
      if (link.is_flat) continue;
      if (link.stored < paper_->first_buffer_) {  // Only padding of the buffers is linked to them directly.
        throw wrong(fmt::format("cannot use the map's flatten.shapes: no rule stores '{}' in flat buffers", entry.name))
            .of_tensor(entry.name);
      }
      link.stored = buffer_of_[link.stored - paper_->first_buffer_];
    }
    if (!entry.is_padding) entry.dtype = dtype_of(entry.name, entry.links);
    made_.push_back(std::move(entry));
  }
}

/// Finds the checkpoint's buffer. Its length may include padding that the map does not write.
std::uint32_t FlatUndo::find_buffer(const FlatBuffer& buffer) {
  const std::uint32_t* found = found_.find(key_of(buffer.rank, buffer.name));
  // A buffer without a rank is the same on all ranks.
  if (found == nullptr) found = found_.find(key_of(-1, buffer.name));
  if (found == nullptr) throw part_missing(buffer.name, buffer.rank);
  const Tensor& tensor = stored_.tensors[*found];
  used_.insert(*found);
  const bool fits = tensor.shape.size() == 1 && tensor.shape[0] >= buffer.size && tensor.shape[0] <= buffer.whole;
  if (!fits || (tensor.shape[0] != buffer.size && tensor.shape[0] != buffer.whole)) {
    throw wrong(fmt::format("cannot map '{}' on rank {}: its length is not the one that the map's flatten produces",
                            buffer.name, buffer.rank))
        .of_tensor(buffer.name)
        .of_rank(static_cast<int>(buffer.rank))
        .expected(buffer.size == buffer.whole ? fmt::format("[{}]", buffer.size)
                                              : fmt::format("[{}], or [{}] with padding", buffer.size, buffer.whole))
        .found(to_string(tensor.shape));
  }
  if (tensor.shape[0] > buffer.size) take_tail(buffer, *found);
  return *found;
}

/// Accepts padding at a buffer's end that is stored although the map does not write it.
void FlatUndo::take_tail(const FlatBuffer& buffer, std::uint32_t index) {
  const std::int64_t count = buffer.whole - buffer.size;
  MapLink link{.stored = index, .box = run_box(buffer.size, count, arena_)};
  made_.push_back({.name = buffer.name,
                   .shape = link.box.sizes,
                   .dtype = buffer.dtype,
                   .is_padding = true,
                   .is_compared = flatten_.checks_padding,
                   .links = {link}});
}

/// A local tensor has the dtype of the buffers that contain it, which must be one dtype.
void FlatUndo::find_dtypes() {
  for (std::uint32_t local = 0; local < buffers()->locals().size(); ++local) {
    const std::span<const FlatPlace> places = buffers()->places_of(local);
    const auto dtype_at = [&](const FlatPlace& place) { return stored_.tensors[buffer_of_[place.buffer]].dtype; };
    dtypes_.push_back(places.empty() ? buffers()->locals()[local].dtype : dtype_at(places.front()));
    for (const FlatPlace& place : places) {
      if (dtype_at(place) != dtypes_.back())
        throw dtypes_differ(buffers()->locals()[local].key, dtypes_.back(), dtype_at(place));
    }
  }
}

DType FlatUndo::dtype_of(std::string_view name, std::span<const MapLink> links) const {
  if (links.empty()) return families_.front().dtype;
  const DType dtype = dtypes_[links.front().stored];
  for (const MapLink& link : links) {
    if (dtypes_[link.stored] != dtype) throw dtypes_differ(name, dtype, dtypes_[link.stored]);
  }
  return dtype;
}

}  // namespace shard
