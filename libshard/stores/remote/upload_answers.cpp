#include "libshard/stores/remote/upload_answers.h"

#include <fmt/format.h>

#include <algorithm>
#include <pugixml.hpp>
#include <sstream>

#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/stores/remote/url.h"

namespace shard::stores {

namespace {

constexpr std::size_t kMostParts = 10'000, kMostUploads = 100'000, kMostWord = 4096;

Error bad_answer(const std::string& why) {
  return Error(ErrorCode::kCorruption, "cannot use the server's answer about an upload").because(why);
}

/// \throws Error kCorruption
pugi::xml_node root_of(pugi::xml_document& document, std::string_view xml) {
  const pugi::xml_parse_result parsed = document.load_buffer(xml.data(), xml.size());
  const pugi::xml_node root = document.document_element();
  if (!parsed || !root) throw bad_answer(fmt::format("it is not XML: {}", parsed.description()));
  if (std::string_view(root.name()) == "Error") throw bad_answer("it is an error");
  return root;
}

/// A word that is sent back in later requests. \throws Error kCorruption
std::string word(const pugi::xml_node& node, const char* name) {
  const std::string_view text = node.child_value(name);
  const bool is_bad =
      text.size() > kMostWord || std::ranges::any_of(text, [](char c) { return static_cast<unsigned char>(c) < 0x20; });
  if (is_bad) throw bad_answer(fmt::format("{} is not a plain word", name));
  return std::string(text);
}

bool is_true(const pugi::xml_node& node, const char* name) {
  return std::string_view(node.child_value(name)) == "true";
}

}  // namespace

std::string upload_name(std::string_view xml) {
  pugi::xml_document document;
  std::string name = word(root_of(document, xml), "UploadId");
  if (name.empty()) throw bad_answer("it names no upload");
  return name;
}

NextPage add_parts_page(std::string_view xml, std::vector<StoredPart>& parts) {
  pugi::xml_document document;
  const pugi::xml_node root = root_of(document, xml);
  const std::size_t before = parts.size();
  for (const pugi::xml_node& each : root.children("Part")) {
    StoredPart part;
    part.number = parse_natural<int>(each.child_value("PartNumber")).value_or(0);
    part.bytes = parse_natural<std::int64_t>(each.child_value("Size")).value_or(-1);
    part.etag = word(each, "ETag");
    part.crc32c = word(each, "ChecksumCRC32C");
    const int last = parts.empty() ? 0 : parts.back().number;
    if (part.number <= last || part.bytes < 0 || part.etag.empty() || parts.size() == kMostParts) {
      throw bad_answer(fmt::format("part {} after part {} has no valid number, size or ETag", part.number, last));
    }
    parts.push_back(std::move(part));
  }
  if (!is_true(root, "IsTruncated")) return {};
  if (parts.size() == before) throw bad_answer("it does not continue");
  return {std::to_string(parts.back().number)};
}

NextPage add_uploads_page(std::string_view xml, const std::string& prefix, std::vector<BucketObject>& uploads) {
  pugi::xml_document document;
  const pugi::xml_node root = root_of(document, xml);
  const bool is_encoded = std::string_view(root.child_value("EncodingType")) == "url";
  const auto name = [&](const pugi::xml_node& node, const char* of) {
    const std::string text = word(node, of);
    return is_encoded ? decode_listed_key(text) : text;
  };
  const std::size_t before = uploads.size();
  for (const pugi::xml_node& each : root.children("Upload")) {
    BucketObject upload{.url = name(each, "Key"), .upload = word(each, "UploadId")};
    if (uploads.size() == kMostUploads) throw bad_answer(fmt::format("it has more than {} uploads", kMostUploads));
    if (!upload.upload.empty() && upload.url.starts_with(prefix)) uploads.push_back(std::move(upload));
  }
  if (!is_true(root, "IsTruncated")) return {};
  NextPage next{name(root, "NextKeyMarker"), word(root, "NextUploadIdMarker")};
  if (next.marker.empty() || uploads.size() == before) throw bad_answer("it does not continue");
  return next;
}

StoredPart copied_part(std::string_view xml) {
  pugi::xml_document document;
  const pugi::xml_node root = root_of(document, xml);
  StoredPart part;
  part.etag = word(root, "ETag");
  part.crc32c = word(root, "ChecksumCRC32C");
  if (part.etag.empty()) throw bad_answer("it has no ETag of the part");
  return part;
}

std::string complete_text(const std::vector<StoredPart>& parts) {
  pugi::xml_document document;
  pugi::xml_node root = document.append_child("CompleteMultipartUpload");
  root.append_attribute("xmlns") = "http://s3.amazonaws.com/doc/2006-03-01/";
  for (const StoredPart& part : parts) {
    pugi::xml_node node = root.append_child("Part");
    node.append_child("PartNumber").text() = part.number;
    node.append_child("ETag").text() = part.etag.c_str();
    if (!part.crc32c.empty()) node.append_child("ChecksumCRC32C").text() = part.crc32c.c_str();
  }
  std::ostringstream text;
  document.save(text, "", pugi::format_raw | pugi::format_no_declaration);
  return text.str();
}

}  // namespace shard::stores
