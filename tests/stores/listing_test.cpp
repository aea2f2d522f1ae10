// Listings of servers: no entry is trusted.
#include "libshard/stores/remote/listing.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace shard::stores {
namespace {

std::string s3_page(const std::string& content) { return "<ListBucketResult>" + content + "</ListBucketResult>"; }

std::string s3_entry(const std::string& key, const std::string& size = "5") {
  return "<Contents><Key>" + key + "</Key><Size>" + size + "</Size><ETag>&quot;e&quot;</ETag></Contents>";
}

void expect_refused(const std::string& xml, const std::string& words) {
  ListingPages pages("ckpt/");
  test::expect_error(ErrorCode::kCorruption, words, [&] { pages.add_s3_page(xml); });
}

TEST(S3Listing, HasSortedFilesAndFoldersOfAllPages) {
  ListingPages pages("ckpt/");
  const std::string more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>";
  EXPECT_EQ(pages.add_s3_page(s3_page(s3_entry("ckpt/b") + s3_entry("ckpt/") + more)), "t");
  EXPECT_EQ(pages.add_s3_page(s3_page("<EncodingType>url</EncodingType>" + s3_entry("ckpt/a%20b+%2B", "7") +
                                      "<CommonPrefixes><Prefix>ckpt/sub/</Prefix></CommonPrefixes>")),
            "");
  const Listing listing = pages.take();
  ASSERT_EQ(listing.objects.size(), 2U);
  EXPECT_EQ(listing.objects[0].key, "ckpt/a b +");
  EXPECT_EQ(listing.objects[0].bytes, 7);
  EXPECT_EQ(listing.objects[1].etag, "\"e\"");
  EXPECT_EQ(listing.folders, std::vector<std::string>{"ckpt/sub"});
}

TEST(S3Listing, MalformedPagesAreRefused) {
  expect_refused("", "it is not XML");
  expect_refused("<ListBucketResult><Contents>", "it is not XML");
  expect_refused("<Error><Code>SlowDown</Code></Error>", "it is an error: SlowDown");
  expect_refused(s3_page(s3_entry("other/x")), "is not below 'ckpt/'");
  expect_refused(s3_page(s3_entry("ckpt/../../etc/passwd")), "has a part '.' or '..'");
  expect_refused(s3_page(s3_entry("ckpt/a", "-5")), "has no valid size");
  expect_refused(s3_page(s3_entry("ckpt/a", "9223372036854775808")), "has no valid size");
  expect_refused(s3_page("<EncodingType>url</EncodingType>" + s3_entry("ckpt/a%00b")), "a control character");
  expect_refused(s3_page(s3_entry("ckpt/a") + "<IsTruncated>true</IsTruncated>"), "it does not continue");
  expect_refused(s3_page("<CommonPrefixes><Prefix>ckpt/..//</Prefix></CommonPrefixes>"), "is not below 'ckpt/'");
}

TEST(S3Listing, ThatRepeatsOrNeverEndsIsRefused) {
  ListingPages same("");
  const std::string more = "<IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>";
  same.add_s3_page(s3_page(s3_entry("a") + more));
  test::expect_error(ErrorCode::kCorruption, "it does not continue",
                     [&] { same.add_s3_page(s3_page(s3_entry("b") + more)); });
  ListingPages twice("");
  twice.add_s3_page(s3_page(s3_entry("a") + s3_entry("a")));
  test::expect_error(ErrorCode::kCorruption, "'a' appears twice", [&] { twice.take(); });
  ListingPages endless("");
  const auto add_pages = [&] {
    for (int i = 0; i < 1000; ++i) {
      const std::string next = "<NextContinuationToken>" + std::to_string(i) + "</NextContinuationToken>";
      endless.add_s3_page(s3_page(s3_entry("k" + std::to_string(i)) + "<IsTruncated>true</IsTruncated>" + next));
    }
  };
  test::expect_error(ErrorCode::kCorruption, "pages have only", add_pages);
}

TEST(S3Listing, EntitiesOfADocumentTypeAreNotExpanded) {
  ListingPages pages("");
  pages.add_s3_page("<!DOCTYPE l [<!ENTITY a \"" + std::string(1000, 'x') + "\">]>" + s3_page(s3_entry("&a;&a;")));
  EXPECT_EQ(pages.take().objects.at(0).key, "&a;&a;");
}

TEST(HubListing, TakesFilesOnly) {
  ListingPages pages("");
  pages.add_hub_page(R"([{"type":"directory","path":"d"},{"type":"file","path":"d/f","size":9}])");
  const Listing listing = pages.take();
  ASSERT_EQ(listing.objects.size(), 1U);
  EXPECT_EQ(listing.objects[0].key, "d/f");
  for (const char* const bad :
       {"{}", "[", R"([{"type":"file","path":"../x","size":1}])", R"([{"type":"file","path":"x","size":-1}])",
        R"([{"type":"file","size":1}])", R"([{"type":"file","path":"x","size":18446744073709551615}])"}) {
    ListingPages each("");
    test::expect_error(ErrorCode::kCorruption, "cannot use the server's list of files",
                       [&] { each.add_hub_page(bad); });
  }
}

TEST(S3Errors, HaveACodeOfLettersAndDots) {
  EXPECT_EQ(s3_error_code("<Error><Code>KMS.DisabledException</Code></Error>"), "KMS.DisabledException");
  EXPECT_EQ(s3_error_code("<?xml version='1.0'?><Error><Code>NoSuchKey</Code></Error>"), "NoSuchKey");
  EXPECT_EQ(s3_error_code("<Error><Code>a b</Code></Error>"), "");
  EXPECT_EQ(s3_error_code("<html>no</html>"), "");
  EXPECT_EQ(s3_error_code(""), "");
}

}  // namespace
}  // namespace shard::stores
