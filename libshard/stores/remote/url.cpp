#include "libshard/stores/remote/url.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "libshard/core/ascii.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/io/url_path.h"

namespace shard::stores {

namespace {

constexpr std::string_view kHexDigits = "0123456789ABCDEF";

bool is_unreserved(char c) { return is_alphanumeric({&c, 1}, "-_.~"); }

int hex_digit(char c) {
  if (is_digit(c)) return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

bool is_encoded_at(std::string_view text, std::size_t i) {
  return text[i] == '%' && i + 2 < text.size() && hex_digit(text[i + 1]) >= 0 && hex_digit(text[i + 2]) >= 0;
}

void add_encoded(std::string& out, char c) {
  const auto byte = static_cast<unsigned char>(c);
  out += '%';
  out += kHexDigits[byte >> 4];
  out += kHexDigits[byte & 15];
}

Error bad_url(const std::string& text, const std::string& why) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("cannot use the URL: {}", why)).in_file(text);
}

Error bad_address(const std::string& address, std::string_view named_by) {
  return Error(ErrorCode::kInvalidArgument, fmt::format("{} is not the address of a service", named_by))
      .expected("an address such as https://host:port")
      .found(address.find('@') == std::string::npos ? address : "an address with a user or a password");
}

std::string_view host_of(std::string_view authority) {
  if (authority.starts_with('[')) return authority.substr(0, authority.find(']') + 1);
  return authority.substr(0, authority.find(':'));
}

/// The bytes of a dotted IPv4 address; false for a name.
bool take_address(std::string_view host, std::array<int, 4>& address) {
  for (std::size_t i = 0; i < address.size(); ++i) {
    const auto number = take_natural<int>(host);
    if (!number || *number > 255) return false;
    address[i] = *number;
    if (i < 3 && !host.starts_with('.')) return false;
    if (i < 3) host.remove_prefix(1);
  }
  return host.empty();
}

}  // namespace

Url parse_url(const std::string& text) {
  Url url;
  url.scheme = url_scheme(text);
  const std::string_view rest = std::string_view(text).substr(url.scheme.size() + 3);
  const std::size_t end = std::min(rest.find('/'), rest.size());
  url.authority = rest.substr(0, end);
  if (end < rest.size()) url.path = rest.substr(end + 1);
  while (url.path.ends_with('/')) url.path.pop_back();
  const bool is_web = url.scheme == "https" || url.scheme == "http";
  if (url.authority.empty()) throw bad_url(url.scheme + "://", is_web ? "it has no host" : "it has no bucket");
  if (url.authority.find('@') != std::string::npos && url.scheme != "hf") {
    throw bad_url(url.scheme + "://...", "it contains a user or a password")
        .hint("put credentials into the environment or a file (docs/stores.md)");
  }
  if (is_web && rest.find_first_of("?#") != std::string_view::npos) {
    throw bad_url(text.substr(0, text.find_first_of("?#")), "it has a query or a fragment")
        .because("names of files are appended to it, and a signature in it would appear in messages");
  }
  const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
  if (std::ranges::any_of(text, is_control)) throw bad_url(text, "it has a control character");
  return url;
}

std::string percent_encode(std::string_view text, bool keeps_slash) {
  std::string out;
  for (const char c : text) {
    if (is_unreserved(c) || (keeps_slash && c == '/')) {
      out += c;
    } else {
      add_encoded(out, c);
    }
  }
  return out;
}

std::string percent_encode_rest(std::string_view path) {
  constexpr std::string_view kLegal = "/!$&'()*+,;=:@";
  std::string out;
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (is_unreserved(path[i]) || kLegal.find(path[i]) != std::string_view::npos || is_encoded_at(path, i)) {
      out += path[i];
    } else {
      add_encoded(out, path[i]);
    }
  }
  return out;
}

std::string encode_illegal(std::string_view target) {
  constexpr std::string_view kIllegal = " \"<>\\^`{|}";
  std::string out;
  for (const char c : target) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte > 0x20 && byte < 0x7f && kIllegal.find(c) == std::string_view::npos) {
      out += c;
    } else {
      add_encoded(out, c);
    }
  }
  return out;
}

std::string percent_decode(std::string_view text) {
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if (!is_encoded_at(text, i)) {
      out += text[i];
      continue;
    }
    out += static_cast<char>(hex_digit(text[i + 1]) * 16 + hex_digit(text[i + 2]));
    i += 2;
  }
  return out;
}

std::string decode_listed_key(std::string_view text) {
  std::string spaced(text);
  std::ranges::replace(spaced, '+', ' ');
  return percent_decode(spaced);
}

std::string query_text(const Query& query) {
  std::string out;
  for (const auto& [name, value] : query) {
    out += fmt::format("{}{}={}", out.empty() ? "" : "&", percent_encode(name, false), percent_encode(value, false));
  }
  return out;
}

Service service_of(const std::string& address, std::string_view named_by) {
  const std::string_view scheme = url_scheme(address);
  std::string whole = address;
  while (whole.ends_with('/')) whole.pop_back();
  const std::size_t from = scheme.size() + 3;
  const bool is_service = (scheme == "http" || scheme == "https") && whole.size() > from && whole[from] != '/' &&
                          whole.find_first_of("?#@ ", from) == std::string::npos;
  if (!is_service) throw bad_address(address, named_by);
  const std::size_t end = std::min(whole.find('/', from), whole.size());
  return {whole.substr(0, end), percent_encode_rest(std::string_view(whole).substr(end))};
}

std::string origin_of(const std::string& address, std::string_view named_by) {
  Service service = service_of(address, named_by);
  if (!service.base.empty()) throw bad_address(address, named_by);
  return std::move(service.origin);
}

bool is_loopback(std::string_view authority) {
  const std::string_view host = host_of(authority);
  std::array<int, 4> address{};
  return host == "localhost" || host == "[::1]" || (take_address(host, address) && address[0] == 127);
}

bool is_private(std::string_view authority) {
  const std::string_view host = host_of(authority);
  std::array<int, 4> at{};
  if (is_loopback(authority) || host.starts_with("[f") || host.starts_with("[F") || host.starts_with("[:")) return true;
  if (!take_address(host, at)) return false;
  return at[0] == 10 || at[0] == 0 || (at[0] == 172 && at[1] >= 16 && at[1] < 32) || (at[0] == 192 && at[1] == 168) ||
         (at[0] == 169 && at[1] == 254);
}

}  // namespace shard::stores
