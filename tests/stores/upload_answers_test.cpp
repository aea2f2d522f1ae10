// Answers about uploads are read and checked.
#include "libshard/stores/remote/upload_answers.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace shard::stores {
namespace {

void expect_bad(const std::string& words, const std::function<void()>& read) {
  const Error error = test::error_of(read);
  EXPECT_EQ(error.code(), ErrorCode::kCorruption);
  EXPECT_NE(error.why().find(words), std::string::npos) << error.why();
}

TEST(UploadAnswers, NameTheUpload) {
  EXPECT_EQ(upload_name("<?xml version='1.0'?><Any><Bucket>b</Bucket><UploadId>a b</UploadId></Any>"), "a b");
  expect_bad("names no upload", [] { upload_name("<Any></Any>"); });
  expect_bad("not XML", [] { upload_name("<Any>"); });
  expect_bad("it is an error", [] { upload_name("<Error><UploadId>x</UploadId></Error>"); });
  expect_bad("UploadId is not", [] { upload_name("<A><UploadId>a&#10;b</UploadId></A>"); });
}

TEST(UploadAnswers, ListPartsByRisingNumbers) {
  std::vector<StoredPart> parts;
  const NextPage next = add_parts_page(
      "<ListPartsResponse><Part><PartNumber>2</PartNumber><ETag>\"e\"</ETag><Size>5</Size>"
      "<ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part><IsTruncated>true</IsTruncated></ListPartsResponse>",
      parts);
  EXPECT_EQ(next.marker, "2");
  EXPECT_TRUE(
      add_parts_page("<A><Part><PartNumber>3</PartNumber><ETag>f</ETag><Size>0</Size></Part></A>", parts).is_last());
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[0].number, 2);
  EXPECT_EQ(parts[0].bytes, 5);
  EXPECT_EQ(parts[0].etag, "\"e\"");
  EXPECT_EQ(parts[0].crc32c, "4waSgw==");
}

TEST(UploadAnswers, RefuseImpossibleParts) {
  for (const char* part : {"<PartNumber>0</PartNumber><ETag>e</ETag><Size>5</Size>",
                           "<PartNumber>1</PartNumber><ETag>e</ETag><Size>-5</Size>",
                           "<PartNumber>1</PartNumber><ETag>e</ETag><Size>9223372036854775808</Size>",
                           "<PartNumber>1</PartNumber><Size>5</Size>", "<ETag>e</ETag><Size>5</Size>"}) {
    std::vector<StoredPart> parts;
    expect_bad("no valid number", [&] { add_parts_page(std::string("<A><Part>") + part + "</Part></A>", parts); });
  }
  std::vector<StoredPart> parts{{.number = 4}};
  expect_bad("part 4 after part 4", [&] {
    add_parts_page("<A><Part><PartNumber>4</PartNumber><ETag>e</ETag><Size>5</Size></Part></A>", parts);
  });
  parts.clear();
  expect_bad("does not continue", [&] { add_parts_page("<A><IsTruncated>true</IsTruncated></A>", parts); });
}

TEST(UploadAnswers, ListUploadsBelowAPrefix) {
  std::vector<BucketObject> uploads;
  const NextPage next = add_uploads_page(
      "<A><EncodingType>url</EncodingType><Upload><Key>out/a+b</Key><UploadId>1</UploadId></Upload>"
      "<Upload><Key>other</Key><UploadId>2</UploadId></Upload><IsTruncated>true</IsTruncated>"
      "<NextKeyMarker>out/a%20b</NextKeyMarker><NextUploadIdMarker>1</NextUploadIdMarker></A>",
      "out", uploads);
  ASSERT_EQ(uploads.size(), 1U);
  EXPECT_EQ(uploads[0].url, "out/a b");
  EXPECT_EQ(uploads[0].upload, "1");
  EXPECT_EQ(next.marker, "out/a b");
  EXPECT_EQ(next.upload, "1");
  expect_bad("does not continue", [&] { add_uploads_page("<A><IsTruncated>true</IsTruncated></A>", "out", uploads); });
}

TEST(UploadAnswers, ThatRepeatAPageOfPartsDoNotContinue) {
  std::vector<StoredPart> parts;
  const auto page = [](const std::string& inner) { return "<A>" + inner + "<IsTruncated>true</IsTruncated></A>"; };
  EXPECT_EQ(add_parts_page(page("<Part><PartNumber>1</PartNumber><Size>5</Size><ETag>e</ETag></Part>"), parts).marker,
            "1");
  expect_bad("does not continue", [&] { add_parts_page(page(""), parts); });
}

TEST(UploadAnswers, CompleteWithTheChecksumsThatTheStoreComputed) {
  EXPECT_EQ(
      complete_text({{1, 5, "\"a&b\"", ""}, {2, 5, "e", "4waSgw=="}}),
      "<CompleteMultipartUpload xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><Part><PartNumber>1</PartNumber>"
      "<ETag>\"a&amp;b\"</ETag></Part><Part><PartNumber>2</PartNumber><ETag>e</ETag>"
      "<ChecksumCRC32C>4waSgw==</ChecksumCRC32C></Part></CompleteMultipartUpload>");
}

TEST(UploadAnswers, DescribeACopiedPart) {
  const StoredPart part = copied_part("<CopyPartResult><ETag>e</ETag></CopyPartResult>");
  EXPECT_EQ(part.etag, "e");
  expect_bad("no ETag", [] { copied_part("<CopyPartResult></CopyPartResult>"); });
}

}  // namespace
}  // namespace shard::stores
