/// \file URLs of the plug-in for object stores: their parts, and percent encoding. Inside libshard/stores/remote only.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace shard::stores {

/// Names and values before encoding, sorted by name.
using Query = std::map<std::string, std::string>;

/// The parts of a URL as the user wrote them.
struct Url {
  std::string scheme;
  std::string authority;  ///< The bucket or the host, with its port.
  std::string path;       ///< Without the slash before it and without slashes at its end.
};

/// \pre is_url(text)
/// \throws Error kInvalidArgument  there is no authority, or it contains a user; the URL has a query or a fragment; a
///   control character
Url parse_url(const std::string& text);

/// Percent-encodes all bytes except letters, digits and "-_.~" (RFC 3986), and with `keeps_slash` '/'.
std::string percent_encode(std::string_view text, bool keeps_slash);
/// Does the same for a path that may be encoded already: "%" and two hexadecimal digits stay.
std::string percent_encode_rest(std::string_view path);
/// Percent-encodes the bytes that no URL may have, such as spaces. Some servers send them in addresses of redirects.
std::string encode_illegal(std::string_view target);
/// Decodes "%" and two hexadecimal digits. Other text stays.
std::string percent_decode(std::string_view text);
/// Decodes a key of a list with `encoding-type=url`, in which S3 writes '+' for a space and "%2B" for '+'.
std::string decode_listed_key(std::string_view text);
/// "a=1&b=", encoded and sorted.
std::string query_text(const Query& query);

/// The address of a service.
struct Service {
  std::string origin{};  ///< "https://host:port".
  std::string base{};    ///< The path before all others, such as "/storage/v1"; or empty.
};
/// \throws Error kInvalidArgument  not http:// or https://, or with a user, a query or a fragment
Service service_of(const std::string& address, std::string_view named_by);
/// The origin of a service without a base. \throws Error kInvalidArgument
std::string origin_of(const std::string& address, std::string_view named_by);

/// Whether a host, possibly with a port, is this machine: localhost, 127.0.0.0/8, [::1].
bool is_loopback(std::string_view authority);
/// Whether a host, possibly with a port, is an address of this machine or of a private or link-local network.
bool is_private(std::string_view authority);

}  // namespace shard::stores
