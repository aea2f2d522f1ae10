#include "libshard/stores/remote/listing.h"

#include <fmt/format.h>

#include <algorithm>
#include <pugixml.hpp>

#include "libshard/core/ascii.h"
#include "libshard/core/parse_number.h"
#include "libshard/stores/remote/json_answer.h"

namespace shard::stores {

namespace {

constexpr std::int64_t kMostEntries = 1'000'000, kMostNameBytes = 256 << 20;
constexpr std::int64_t kFreePages = 64, kLeastEntries = 100;  ///< Per page, after the first kFreePages.
constexpr std::size_t kMostCode = 64;

Error bad_listing(const std::string& why) {
  return Error(ErrorCode::kCorruption, "cannot use the server's list of files").because(why);
}

/// A NUL or a control character would make the name unusable as a path.
bool is_plain(std::string_view key) {
  return std::ranges::none_of(key, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
}

bool has_dots(std::string_view key) {
  return key.starts_with("../") || key.find("/../") != std::string_view::npos || key.ends_with("/..") || key == ".." ||
         key.starts_with("./") || key.find("/./") != std::string_view::npos;
}

}  // namespace

void ListingPages::charge(const std::string& name) {
  bytes_ += static_cast<std::int64_t>(name.size());
  if (++entries_ > kMostEntries || bytes_ > kMostNameBytes) {
    throw bad_listing(fmt::format("it has more than {} files, or {} MiB of names", kMostEntries, kMostNameBytes >> 20));
  }
}

bool may_be_endless(std::int64_t pages, std::int64_t entries) {
  return pages > kFreePages && entries < (pages - kFreePages) * kLeastEntries;
}

void ListingPages::count_page() {
  if (may_be_endless(++pages_, entries_)) {
    throw bad_listing(fmt::format("{} pages have only {} files", pages_, entries_));
  }
}

void ListingPages::add(Object object) {
  if (!object.key.starts_with(prefix_)) throw bad_listing(fmt::format("'{}' is not below '{}'", object.key, prefix_));
  if (!is_plain(object.key)) throw bad_listing("a name has a control character");
  if (has_dots(object.key)) throw bad_listing(fmt::format("the name '{}' has a part '.' or '..'", object.key));
  if (object.bytes < 0) throw bad_listing(fmt::format("'{}' has no valid size", object.key));
  charge(object.key);
  if (object.key.ends_with('/') || object.key == prefix_) return;  // A marker of an empty folder.
  listing_.objects.push_back(std::move(object));
}

std::string ListingPages::add_s3_page(std::string_view xml) {
  pugi::xml_document document;
  const pugi::xml_parse_result parsed = document.load_buffer(xml.data(), xml.size());
  const pugi::xml_node root = document.document_element();
  if (!parsed || !root) throw bad_listing(fmt::format("it is not XML: {}", parsed.description()));
  if (std::string_view(root.name()) == "Error") throw bad_listing("it is an error: " + s3_error_code(xml));
  const bool is_encoded = std::string_view(root.child_value("EncodingType")) == "url";
  const auto decoded = [&](const char* text) { return is_encoded ? decode_listed_key(text) : std::string(text); };
  for (const pugi::xml_node& entry : root.children()) {
    if (std::string_view(entry.name()) == "Contents") {
      Object object{.key = decoded(entry.child_value("Key"))};
      object.bytes = parse_natural<std::int64_t>(entry.child_value("Size")).value_or(-1);
      object.etag = entry.child_value("ETag");
      add(std::move(object));
    } else if (std::string_view(entry.name()) == "CommonPrefixes") {
      std::string folder = decoded(entry.child_value("Prefix"));
      if (!folder.starts_with(prefix_) || !folder.ends_with('/') || !is_plain(folder) || has_dots(folder)) {
        throw bad_listing(fmt::format("the folder '{}' is not below '{}'", folder, prefix_));
      }
      folder.pop_back();
      charge(folder);
      listing_.folders.push_back(std::move(folder));
    }
  }
  count_page();
  if (std::string_view(root.child_value("IsTruncated")) != "true") return {};
  std::string next = root.child_value("NextContinuationToken");
  if (next.empty() || next == token_) throw bad_listing("it does not continue");
  return token_ = std::move(next);
}

void ListingPages::add_hub_page(std::string_view json) {
  const nlohmann::json document = parse_answer(json);
  if (!document.is_array()) throw bad_listing("it is not a JSON array");
  for (const nlohmann::json& entry : document) {
    if (text_in(entry, "type") != "file") continue;
    Object object{.key = text_in(entry, "path"), .bytes = -1};
    if (const auto size = entry.find("size"); size != entry.end() && size->is_number_integer()) {
      object.bytes = size->is_number_unsigned() ? parse_natural(size->dump()).value_or(-1) : size->get<std::int64_t>();
    }
    if (object.key.empty()) throw bad_listing("an entry has no path");
    add(std::move(object));
  }
  count_page();
}

Listing ListingPages::take() {
  std::ranges::sort(listing_.objects, {}, &Object::key);
  const auto repeated = std::ranges::adjacent_find(listing_.objects, {}, &Object::key);
  if (repeated != listing_.objects.end()) throw bad_listing(fmt::format("'{}' appears twice", repeated->key));
  std::ranges::sort(listing_.folders);
  return std::move(listing_);
}

std::string s3_error_code(std::string_view xml) {
  pugi::xml_document document;
  if (xml.find('<') == std::string_view::npos || !document.load_buffer(xml.data(), xml.size())) return {};
  const pugi::xml_node root = document.document_element();
  if (std::string_view(root.name()) != "Error") return {};
  const std::string_view code = root.child_value("Code");
  return code.size() <= kMostCode && is_alphanumeric(code, "-_.") ? std::string(code) : std::string();
}

}  // namespace shard::stores
