#include "formats/hdf5/parser/contents.h"

#include <algorithm>
#include <functional>

namespace shard::hdf5 {

namespace {

/// Reads all elements of `type` into memory.
using Read = std::function<herr_t(hid_t type, void* out)>;

std::string_view without_padding(std::string_view text, H5T_str_t padding) {
  if (padding == H5T_STR_NULLTERM) return text.substr(0, text.find('\0'));
  const char pad = padding == H5T_STR_SPACEPAD ? ' ' : '\0';
  while (!text.empty() && text.back() == pad) text.remove_suffix(1);
  return text;
}

std::vector<std::string_view> fixed_strings(hid_t type, std::int64_t count, const Read& read, EntryArena& arena) {
  const std::size_t bytes = H5Tget_size(type);
  const H5T_str_t padding = checked(H5Tget_strpad(type));
  std::string& all = arena.room(count, static_cast<std::int64_t>(bytes));
  checked(read(type, all.data()));
  std::vector<std::string_view> result;
  for (std::size_t at = 0; at < all.size(); at += bytes) {
    result.push_back(without_padding(std::string_view(all).substr(at, bytes), padding));
  }
  return result;
}

/// libhdf5's copies of strings of variable length, which the destructor frees.
class VariableStrings {
 public:
  VariableStrings(hid_t type, hid_t space, std::string& room) : type_(type), space_(space), room_(room) {}
  ~VariableStrings() { H5Dvlen_reclaim(type_, space_, H5P_DEFAULT, room_.data()); }
  VariableStrings(const VariableStrings&) = delete;
  VariableStrings& operator=(const VariableStrings&) = delete;
  std::span<const char* const> texts() const {
    return {reinterpret_cast<const char* const*>(room_.data()), room_.size() / sizeof(char*)};
  }

 private:
  hid_t type_, space_;
  std::string& room_;
};

std::vector<std::string_view> variable_strings(hid_t type, hid_t space, std::int64_t count, const Read& read,
                                               EntryArena& arena) {
  std::string& room = arena.room(count, sizeof(char*));
  const VariableStrings strings(type, space, room);
  checked(read(type, room.data()));
  std::vector<std::string_view> result;
  for (const char* const text : strings.texts()) {
    result.push_back(text == nullptr ? std::string_view() : arena.text(text));
  }
  return result;
}

std::vector<std::string_view> strings_of(hid_t type, hid_t space, std::int64_t count, const Read& read,
                                         EntryArena& arena) {
  if (count == 0) return {};
  const bool is_variable = checked(H5Tis_variable_str(type)) > 0;
  return is_variable ? variable_strings(type, space, count, read, arena) : fixed_strings(type, count, read, arena);
}

std::span<const std::byte> elements(hid_t type, std::int64_t count, const Read& read, EntryArena& arena) {
  if (count == 0) return {};
  std::string& room = arena.room(count, static_cast<std::int64_t>(H5Tget_size(type)));
  checked(read(type, room.data()));
  return std::as_bytes(std::span(room));
}

Content read_attribute(hid_t attribute, EntryArena& arena) {
  const TypeHandle type(H5Aget_type(attribute));
  const SpaceHandle space(H5Aget_space(attribute));
  Content result;
  result.type = describe_type(type.get());
  result.space = describe_space(space.get());
  const std::int64_t count = elements_of(result.space);
  const Read read = [&](hid_t of, void* out) { return H5Aread(attribute, of, out); };
  if (result.type.kind == TypeClass::kString) {
    result.strings = strings_of(type.get(), space.get(), count, read, arena);
  } else if (is_plain(result.type)) {
    result.data = elements(type.get(), count, read, arena);
  }
  return result;
}

herr_t take_name(hid_t, const char* name, const H5A_info_t*, void* names) noexcept {
  static_cast<std::vector<std::string>*>(names)->emplace_back(name);
  return 0;
}

std::vector<std::string> names_of_attributes(hid_t object) {
  std::vector<std::string> names;
  checked(H5Aiterate2(object, H5_INDEX_NAME, H5_ITER_NATIVE, nullptr, take_name, &names));
  std::ranges::sort(names);
  return names;
}

}  // namespace

std::vector<Attribute> read_attributes(hid_t object, EntryArena& arena) {
  std::vector<Attribute> result;
  for (const std::string& name : names_of_attributes(object)) {
    const AttributeHandle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT));
    result.push_back({arena.text(name), read_attribute(attribute.get(), arena)});
  }
  return result;
}

std::vector<std::string_view> read_strings(hid_t dataset, const Space& space, EntryArena& arena) {
  const TypeHandle type(H5Dget_type(dataset));
  const SpaceHandle file_space(H5Dget_space(dataset));
  return strings_of(
      type.get(), file_space.get(), elements_of(space),
      [&](hid_t of, void* out) { return H5Dread(dataset, of, H5S_ALL, H5S_ALL, H5P_DEFAULT, out); }, arena);
}

std::span<const std::byte> read_elements(hid_t dataset, const Space& space, EntryArena& arena) {
  const TypeHandle type(H5Dget_type(dataset));
  return elements(
      type.get(), elements_of(space),
      [&](hid_t of, void* out) { return H5Dread(dataset, of, H5S_ALL, H5S_ALL, H5P_DEFAULT, out); }, arena);
}

}  // namespace shard::hdf5
