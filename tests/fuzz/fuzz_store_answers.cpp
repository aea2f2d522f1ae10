// The answers of object stores, hubs and services of credentials, files of credentials, and URLs: which one, by the
// first byte, then its text.
#include <cstdlib>

#include "libshard/core/error.h"
#include "libshard/io/url_path.h"
#include "libshard/stores/remote/credentials.h"
#include "libshard/stores/remote/headers.h"
#include "libshard/stores/remote/listing.h"
#include "libshard/stores/remote/upload_answers.h"
#include "libshard/stores/remote/url.h"
#include "libshard/stores/upload_note.h"
#include "tests/fuzz/target.h"

namespace {

using shard::stores::ListingPages;

/// Sorted names below the prefix, none twice, with possible sizes.
void check(const shard::stores::Listing& listing, std::string_view prefix) {
  const std::string* last = nullptr;
  for (const shard::stores::Object& object : listing.objects) {
    const bool is_sorted = last == nullptr || *last < object.key;
    if (!is_sorted || !object.key.starts_with(prefix) || object.bytes < 0) std::abort();
    last = &object.key;
  }
}

void list(std::string_view text, bool is_hub) {
  constexpr std::string_view kPrefix = "ckpt/";
  ListingPages pages{is_hub ? std::string() : std::string(kPrefix)};
  is_hub ? pages.add_hub_page(text) : static_cast<void>(pages.add_s3_page(text));
  check(pages.take(), is_hub ? "" : kPrefix);
}

void list_parts(std::string_view text) {
  std::vector<shard::StoredPart> parts;
  shard::stores::add_parts_page(text, parts);
  int last = 0;
  for (const shard::StoredPart& part : parts) {
    if (part.number <= last || part.bytes < 0 || part.etag.empty()) std::abort();
    last = part.number;
  }
  if (shard::stores::complete_text(parts).size() < parts.size()) std::abort();
}

/// A note is written again as the same text.
void read_note(std::string_view text) {
  const auto note = shard::parse_upload_note(text);
  if (!note) return;
  const auto again = shard::parse_upload_note(note->text());
  if (!again || again->text() != note->text()) std::abort();
}

/// Lines of headers. The waiting time is bounded, a range is inside its file.
void read_headers(std::string_view text) {
  shard::stores::HttpAnswer answer;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size() - 1) + 1;
    shard::stores::add_header(answer, text.substr(0, end));
    text.remove_prefix(end);
  }
  const shard::stores::HttpLimits limits;
  const auto wait = shard::stores::wait_before(3, answer, limits, 0.5);
  if (wait.count() < 0 || wait > limits.longest_asked + limits.longest_wait) std::abort();
  shard::stores::next_page(answer.header("link"));
  const auto range = shard::stores::parse_content_range(answer.header("content-range"));
  if (range && (range->begin < 0 || range->end <= range->begin || range->total < range->end)) std::abort();
}

/// Files of profiles and documents with credentials. A key is never without its secret.
void read_credentials(std::string_view text) {
  shard::stores::Profiles profiles;
  shard::stores::add_profiles(text, false, profiles);
  shard::stores::add_profiles(text, true, profiles);
  for (const auto& found : {shard::stores::parse_credentials(text), shard::stores::parse_sts_credentials(text)}) {
    if (found && (found->key_id.empty() || found->secret.empty())) std::abort();
  }
  std::string token;
  std::time_t expires = 0;
  if (shard::stores::parse_token(text, token, expires) && token.empty()) std::abort();
}

/// An encoded path is decoded to the same bytes.
void read_url(std::string_view text) {
  if (shard::stores::percent_decode(shard::stores::percent_encode(text, true)) != text) std::abort();
  shard::stores::percent_encode_rest(text);
  shard::stores::is_private(text);
  try {
    if (shard::is_url(text)) {
      const shard::stores::Url url = shard::stores::parse_url(std::string(text));
      if (url.authority.empty() || url.path.ends_with('/')) std::abort();
    }
    shard::stores::origin_of(std::string(text), "the text");
  } catch (const shard::Error& error) {
    if (error.code() != shard::ErrorCode::kInvalidArgument) std::abort();
  }
}

void parse(unsigned which, std::string_view text) {
  std::vector<shard::BucketObject> uploads;
  switch (which % 16) {
    case 0:
      return list(text, false);
    case 1:
      return list(text, true);
    case 2:
      return list_parts(text);
    case 3:
      shard::stores::add_uploads_page(text, "ckpt/", uploads);
      return;
    case 4:
      shard::stores::upload_name(text);
      return;
    case 5:
      shard::stores::copied_part(text);
      return;
    case 6:
      shard::stores::s3_error_code(text);
      return;
    case 8:
      return read_headers(text);
    case 9:
      return read_credentials(text);
    case 10:
      return read_url(text);
    default:
      return read_note(text);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  try {
    parse(data[0], shard::fuzz::as_text(data + 1, size - 1));
  } catch (const shard::Error& error) {
    if (error.code() != shard::ErrorCode::kCorruption) std::abort();
  }
  return 0;
}
