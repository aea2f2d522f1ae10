#include "formats/hdf5/build.h"

#include <array>
#include <map>
#include <stdexcept>

#include "formats/hdf5/datatype.h"
#include "formats/hdf5/library/types.h"

namespace shard::hdf5 {

namespace {

/// Attributes beyond the eighth, and those that a header cannot hold, go to an indexed heap: libhdf5's defaults.
PropertiesHandle filled_properties() {
  PropertiesHandle properties(H5Pcreate(H5P_DATASET_CREATE));
  checked(H5Pset_obj_track_times(properties.get(), false));
  return properties;
}

PropertiesHandle dataset_properties() {
  PropertiesHandle properties = filled_properties();
  checked(H5Pset_fill_time(properties.get(), H5D_FILL_TIME_NEVER));
  return properties;
}

/// Without attributes a header of a dataset takes half the bytes.
PropertiesHandle contiguous_properties(bool has_attributes) {
  PropertiesHandle properties = dataset_properties();
  checked(H5Pset_layout(properties.get(), H5D_CONTIGUOUS));
  checked(H5Pset_alloc_time(properties.get(), H5D_ALLOC_TIME_EARLY));
  checked(H5Pset_dset_no_attrs_hint(properties.get(), !has_attributes));
  return properties;
}

PropertiesHandle group_properties() {
  PropertiesHandle properties(H5Pcreate(H5P_GROUP_CREATE));
  checked(H5Pset_obj_track_times(properties.get(), false));
  return properties;
}

PropertiesHandle utf8_links() {
  PropertiesHandle properties(H5Pcreate(H5P_LINK_CREATE));
  checked(H5Pset_char_encoding(properties.get(), H5T_CSET_UTF8));
  return properties;
}

std::vector<hsize_t> sizes_of(std::span<const std::int64_t> numbers) { return {numbers.begin(), numbers.end()}; }

void add_attributes(hid_t object, std::span<const std::pair<std::string, OutgoingContent>> attributes) {
  for (const auto& [name, content] : attributes) add_attribute(object, name, content.view());
}

class Builder {
 public:
  Builder(const Outline& outline, std::int64_t metadata_begin)
      : outline_(outline),
        image_(std::make_unique<Image>(metadata_begin)),
        links_(utf8_links()),
        groups_(group_properties()),
        contiguous_{contiguous_properties(false), contiguous_properties(true)},
        first_paths_(outline.datasets().size()) {}

  std::unique_ptr<Image> build() {
    {
      const GroupHandle root(H5Gopen2(image_->file(), "/", H5P_DEFAULT));
      fill(root.get(), outline_.root(), "");
      types_.clear();
    }
    image_->close();
    return std::move(image_);
  }

 private:
  void fill(hid_t group, const OutgoingNode& node, const std::string& path) {
    for (const auto& [name, member] : node.members) {
      if (member.dataset != kNoIndex) {
        add_dataset(group, name, member.dataset, path);
      } else {
        const GroupHandle inner(H5Gcreate2(group, name.c_str(), links_.get(), groups_.get(), H5P_DEFAULT));
        fill(inner.get(), member, path + '/' + name);
      }
    }
    add_attributes(group, node.attributes);
  }

  void add_dataset(hid_t group, const std::string& name, std::uint32_t number, const std::string& path) {
    const OutgoingDataset& dataset = outline_.datasets()[number];
    std::string& first = first_paths_[number];
    if (!first.empty()) {
      checked(H5Lcreate_hard(image_->file(), first.c_str(), group, name.c_str(), links_.get(), H5P_DEFAULT));
      return;
    }
    if (dataset.names > 1) first = path + '/' + name;
    const DatasetHandle made = make_dataset(group, name, dataset);
    add_attributes(made.get(), dataset.attributes);
  }

  DatasetHandle make_dataset(hid_t group, const std::string& name, const OutgoingDataset& dataset) {
    if (dataset.content) return make_of_content(group, name, dataset);
    return dataset.boxes.empty() ? make_contiguous(group, name, dataset) : make_virtual(group, name, dataset);
  }

  /// Elements that libhdf5 writes itself, among the metadata.
  DatasetHandle make_of_content(hid_t group, const std::string& name, const OutgoingDataset& dataset) {
    const Content content = dataset.content->view();
    DatasetHandle made(H5Dcreate2(group, name.c_str(), make_type(content.type).get(), make_space(content.space).get(),
                                  links_.get(), filled_properties().get(), H5P_DEFAULT));
    write_elements(made.get(), content);
    return made;
  }

  DatasetHandle make_contiguous(hid_t group, const std::string& name, const OutgoingDataset& dataset) {
    if (dataset.bytes > 0) image_->place_next(dataset.offset);
    DatasetHandle made(H5Dcreate2(group, name.c_str(), type_of_elements(dataset.dtype), space_of(dataset).get(),
                                  links_.get(), contiguous_[dataset.attributes.empty() ? 0 : 1].get(), H5P_DEFAULT));
    const bool is_placed = dataset.bytes == 0 || H5Dget_offset(made.get()) == static_cast<haddr_t>(dataset.offset);
    if (!is_placed) throw std::logic_error("libhdf5 put a dataset at an unexpected offset");
    return made;
  }

  /// In the names of sources '%' begins the number of a block.
  static std::string without_numbers(std::string_view name) {
    std::string doubled;
    for (const char each : name) doubled.append(each == '%' ? 2 : 1, each);
    return doubled;
  }

  DatasetHandle make_virtual(hid_t group, const std::string& name, const OutgoingDataset& dataset) {
    const PropertiesHandle properties = dataset_properties();
    const SpaceHandle space = space_of(dataset);
    for (const OutgoingBox& box : dataset.boxes) {
      const std::vector<hsize_t> begin = sizes_of(box.offsets), sizes = sizes_of(box.sizes);
      checked(H5Sselect_hyperslab(space.get(), H5S_SELECT_SET, begin.data(), nullptr, sizes.data(), nullptr));
      const SpaceHandle source(H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr));
      checked(H5Pset_virtual(properties.get(), space.get(), box.file.c_str(), without_numbers(box.dataset).c_str(),
                             source.get()));
    }
    checked(H5Sselect_all(space.get()));
    return DatasetHandle(H5Dcreate2(group, name.c_str(), type_of_elements(dataset.dtype), space.get(), links_.get(),
                                    properties.get(), H5P_DEFAULT));
  }

  static SpaceHandle space_of(const OutgoingDataset& dataset) {
    if (dataset.shape.empty()) return make_space({});
    return make_space({SpaceKind::kSimple, dataset.shape});
  }

  hid_t type_of_elements(DType dtype) {
    const auto known = types_.find(dtype);
    if (known != types_.end()) return known->second.get();
    return types_.emplace(dtype, make_type(type_of(dtype))).first->second.get();
  }

  const Outline& outline_;
  std::unique_ptr<Image> image_;
  PropertiesHandle links_, groups_;
  std::array<PropertiesHandle, 2> contiguous_;  ///< Without attributes, and with.
  std::map<DType, TypeHandle> types_;
  std::vector<std::string> first_paths_;  ///< By dataset: its first name, where it has several.
};

}  // namespace

std::unique_ptr<Image> build_image(const Outline& outline, std::int64_t metadata_begin) {
  return Builder(outline, metadata_begin).build();
}

}  // namespace shard::hdf5
