/// \file
/// Between keys of paths and HDF5's names of links and attributes. Inside formats/hdf5 only.
///
/// A link's name cannot hold '/' or NUL, and cannot be empty, "." or ".."; keys can. In files of ours such keys are
/// percent-encoded, and '%' with them; the root's attribute `shardctl.names` says so. Attributes' names are encoded in
/// the same way. Names in other files mean themselves.
#pragma once

#include <string>
#include <string_view>

namespace shard::hdf5 {

/// The root's attribute, and its value.
inline constexpr std::string_view kNamesAttribute = "shardctl.names";
inline constexpr std::string_view kPercentEncoded = "percent-encoded";

/// '/', '%' and NUL become %2F, %25 and %00; "" becomes "%", "." and ".." become "%2E" and "%2E%2E".
std::string link_name(std::string_view key);
/// The inverse. Text that link_name never makes is kept as it is.
std::string key_of_link(std::string_view link);

/// What our own attributes begin with.
inline constexpr std::string_view kReserved = "shardctl.";

/// As link_name; a key that looks like the name of an attribute of ours gets a '%' before it.
std::string attribute_name(std::string_view key);
/// The inverse.
std::string key_of_attribute(std::string_view name);

}  // namespace shard::hdf5
