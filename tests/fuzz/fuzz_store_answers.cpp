// The answers of object stores and hubs: which one, by the first byte, then its text.
#include <cstdlib>

#include "libshard/core/error.h"
#include "libshard/stores/remote/listing.h"
#include "libshard/stores/remote/upload_answers.h"
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

void parse(unsigned which, std::string_view text) {
  std::vector<shard::BucketObject> uploads;
  switch (which % 8) {
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
