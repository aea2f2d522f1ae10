#include "formats/hdf5/parser/virtual_mappings.h"

#include <algorithm>

#include "libshard/core/index_walk.h"

namespace shard::hdf5 {

namespace {

struct Run {
  std::int64_t at = 0, length = 0;
};
/// The indices that a selection takes of one dimension, as runs.
using Runs = std::vector<Run>;

/// What a regular selection takes of each dimension.
struct Selected {
  std::vector<Runs> dims;
};

std::int64_t length_of(const Runs& runs) {
  std::int64_t length = 0;
  for (const Run& run : runs) length += run.length;
  return length;
}

Runs runs_of(hsize_t start, hsize_t stride, hsize_t count, hsize_t block, Kept& kept) {
  if (count == H5S_UNLIMITED || block == H5S_UNLIMITED) {
    throw_unsupported("virtual datasets of unlimited size are not supported");
  }
  if (count == 1 || stride == block) {
    return {{signed_of(start), signed_of(count == 1 ? block : count * block)}};
  }
  kept.room(signed_of(count), sizeof(Run));  // Counted, so that a stride over a huge shape has its limit.
  Runs runs;
  for (hsize_t i = 0; i < count; ++i) runs.push_back({signed_of(start + i * stride), signed_of(block)});
  return runs;
}

Selected whole(std::span<const std::int64_t> shape) {
  Selected result;
  for (const std::int64_t size : shape) result.dims.push_back({{0, size}});
  return result;
}

std::vector<std::int64_t> shape_of(const Selected& selected) {
  std::vector<std::int64_t> shape;
  for (const Runs& runs : selected.dims) shape.push_back(length_of(runs));
  return shape;
}

Selected hyperslab(hid_t space, std::size_t rank, Kept& kept) {
  if (checked(H5Sis_regular_hyperslab(space)) == 0) {
    throw_unsupported("virtual datasets of irregular selections are not supported");
  }
  std::vector<hsize_t> start(rank), stride(rank), count(rank), block(rank);
  checked(H5Sget_regular_hyperslab(space, start.data(), stride.data(), count.data(), block.data()));
  Selected result;
  for (std::size_t i = 0; i < rank; ++i) result.dims.push_back(runs_of(start[i], stride[i], count[i], block[i], kept));
  return result;
}

Selected selected(hid_t space, Kept& kept) {
  const Space extent = describe_space(space);
  switch (checked(H5Sget_select_type(space))) {
    case H5S_SEL_ALL:
      return whole(extent.shape);
    case H5S_SEL_HYPERSLABS:
      return hyperslab(space, extent.shape.size(), kept);
    default:
      throw_unsupported("virtual datasets of selections of points are not supported");
  }
}

/// Where all of a source is meant, its shape need not be in the file: it is what the virtual dataset takes of it. Then
/// it may read as a scalar.
Selected source_of(hid_t space, const Selected& to, Kept& kept) {
  const bool is_all = checked(H5Sget_select_type(space)) == H5S_SEL_ALL;
  const std::vector<std::int64_t> shape = shape_of(to);
  const Space extent = describe_space(space);
  const bool fits = !extent.shape.empty() && elements_of(extent) == elements_of({SpaceKind::kSimple, shape});
  return is_all && !fits ? whole(shape) : selected(space, kept);
}

/// Cuts the runs of both sides where either ends.
std::vector<std::pair<Run, Run>> joined(const Runs& runs, const Runs& sources) {
  std::vector<std::pair<Run, Run>> result;
  std::size_t i = 0, j = 0;
  Run run, source;
  while (true) {
    if (run.length == 0 && i < runs.size()) run = runs[i++];
    if (source.length == 0 && j < sources.size()) source = sources[j++];
    const std::int64_t length = std::min(run.length, source.length);
    if (length == 0) return result;
    result.push_back({{run.at, length}, {source.at, length}});
    run = {run.at + length, run.length - length};
    source = {source.at + length, source.length - length};
  }
}

/// For each dimension of a virtual dataset that of its source, or none: dimensions of size 1 need no partner.
constexpr std::size_t kNone = ~std::size_t{0};
std::vector<std::size_t> partners(const Selected& to, const Selected& from) {
  std::vector<std::size_t> result(to.dims.size(), kNone);
  std::size_t next = 0;
  for (std::size_t i = 0; i < to.dims.size(); ++i) {
    const std::int64_t length = length_of(to.dims[i]);
    std::size_t at = next;
    while (at < from.dims.size() && length_of(from.dims[at]) != length && length_of(from.dims[at]) == 1) ++at;
    const bool fits = at < from.dims.size() && length_of(from.dims[at]) == length;
    if (!fits && length != 1) throw_unsupported("virtual datasets over parts of another shape are not supported");
    if (!fits) continue;
    result[i] = at;
    next = at + 1;
  }
  return result;
}

/// Every combination of one pair of runs per dimension is a box.
class BoxMaker {
 public:
  BoxMaker(const Selected& to, const Selected& from, Kept& kept) : to_(to), from_(from), partners_(partners(to, from)) {
    std::vector<bool> is_taken(from.dims.size());
    std::int64_t boxes = 1;
    for (std::size_t i = 0; i < to.dims.size(); ++i) {
      const Runs single{{0, 1}};
      if (partners_[i] != kNone) is_taken[partners_[i]] = true;
      pairs_.push_back(joined(to.dims[i], partners_[i] == kNone ? single : from.dims[partners_[i]]));
      if (__builtin_mul_overflow(boxes, static_cast<std::int64_t>(pairs_.back().size()), &boxes)) boxes = -1;
    }
    for (std::size_t j = 0; j < is_taken.size(); ++j) {
      if (!is_taken[j] && length_of(from.dims[j]) != 1) {
        throw_unsupported("virtual datasets over parts of another shape are not supported");
      }
    }
    kept.room(std::max<std::int64_t>(boxes, 0), static_cast<std::int64_t>(sizeof(VirtualBox) + 32 * rank()));
  }

  std::vector<VirtualBox> boxes() {
    std::vector<VirtualBox> result;
    if (std::ranges::any_of(pairs_, [](const auto& each) { return each.empty(); })) return result;
    std::vector<std::size_t> at(pairs_.size()), counts;
    for (const auto& each : pairs_) counts.push_back(each.size());
    do result.push_back(box(at));
    while (next_index(std::span(at), std::span<const std::size_t>(counts)) >= 0);
    return result;
  }

 private:
  std::size_t rank() const { return to_.dims.size() + from_.dims.size(); }

  VirtualBox box(const std::vector<std::size_t>& at) const {
    VirtualBox box;
    for (const Runs& runs : from_.dims) {
      box.source_offsets.push_back(runs.empty() ? 0 : runs[0].at);
      box.source_sizes.push_back(1);
    }
    for (std::size_t i = 0; i < at.size(); ++i) {
      const auto& [run, source] = pairs_[i][at[i]];
      box.offsets.push_back(run.at);
      box.sizes.push_back(run.length);
      if (partners_[i] == kNone) continue;
      box.source_offsets[partners_[i]] = source.at;
      box.source_sizes[partners_[i]] = source.length;
    }
    return box;
  }

  const Selected &to_, &from_;
  std::vector<std::size_t> partners_;
  std::vector<std::vector<std::pair<Run, Run>>> pairs_;
};

/// Names of sources have "%b" for the number of a block, and "%%" for '%'.
std::string_view without_escapes(std::string name, Kept& kept) {
  for (std::size_t at = name.find('%'); at != name.npos; at = name.find('%', at + 1)) {
    if (name.substr(at, 2) != "%%") throw_unsupported("virtual datasets over numbered sources are not supported");
    name.erase(at, 1);
  }
  return kept.text(name);
}

template <ssize_t (*Get)(hid_t, size_t, char*, size_t)>
std::string name_of(hid_t properties, std::size_t index) {
  const auto bytes = static_cast<std::size_t>(checked(Get(properties, index, nullptr, 0)));
  std::string name(bytes + 1, '\0');
  checked(Get(properties, index, name.data(), name.size()));
  name.resize(bytes);
  return name;
}

}  // namespace

std::vector<VirtualMapping> read_mappings(hid_t properties, Kept& kept) {
  size_t count = 0;
  checked(H5Pget_virtual_count(properties, &count));
  std::vector<VirtualMapping> result;
  for (size_t i = 0; i < count; ++i) {
    const SpaceHandle space(H5Pget_virtual_vspace(properties, i)), source(H5Pget_virtual_srcspace(properties, i));
    const Selected to = selected(space.get(), kept), from = source_of(source.get(), to, kept);
    VirtualMapping mapping;
    mapping.file = without_escapes(name_of<H5Pget_virtual_filename>(properties, i), kept);
    mapping.dataset = without_escapes(name_of<H5Pget_virtual_dsetname>(properties, i), kept);
    mapping.boxes = BoxMaker(to, from, kept).boxes();
    result.push_back(std::move(mapping));
  }
  return result;
}

}  // namespace shard::hdf5
