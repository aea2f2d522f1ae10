/// \file
/// Converts between keys of paths and HDF5's names of links and attributes. Inside formats/hdf5 only.
///
/// A link's name cannot contain '/' or NUL, and cannot be empty, "." or ".."; keys can. In shardctl's files such keys
/// are percent-encoded, and '%' with them; the root's attribute `shardctl.names` records this. Names of attributes are
/// encoded in the same way. Names in other files are used unchanged.
#pragma once

#include <string>
#include <string_view>

namespace shard::hdf5 {

/// The root's attribute, and its value.
inline constexpr std::string_view kNamesAttribute = "shardctl.names";
inline constexpr std::string_view kPercentEncoded = "percent-encoded";

/// '/', '%' and NUL become %2F, %25 and %00; "" becomes "%", "." and ".." become "%2E" and "%2E%2E".
std::string link_name(std::string_view key);
/// The inverse. Text that link_name never produces is kept unchanged.
std::string key_of_link(std::string_view link);

/// The prefix of shardctl's own attributes.
inline constexpr std::string_view kReserved = "shardctl.";

/// Like link_name. A key that could be the name of one of shardctl's own attributes gets a '%' before it.
std::string attribute_name(std::string_view key);
/// The inverse of attribute_name.
std::string key_of_attribute(std::string_view name);

}  // namespace shard::hdf5
