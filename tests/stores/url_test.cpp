// The parts of URLs and their encoding.
#include "libshard/stores/remote/url.h"

#include <gtest/gtest.h>

#include "tests/support/expect_error.h"

namespace shard::stores {
namespace {

void expect_bad_url(const std::string& url, const std::string& words) {
  test::expect_error(ErrorCode::kInvalidArgument, words, [&] { parse_url(url); });
}

TEST(Url, HasAnAuthorityAndAPathWithoutSlashesAtItsEnds) {
  const Url url = parse_url("s3://bucket/a/b//");
  EXPECT_EQ(url.scheme, "s3");
  EXPECT_EQ(url.authority, "bucket");
  EXPECT_EQ(url.path, "a/b");
  EXPECT_EQ(parse_url("s3://bucket").path, "");
  EXPECT_EQ(parse_url("https://host:8080/x").authority, "host:8080");
}

TEST(Url, WithCredentialsOrAQueryIsRefused) {
  expect_bad_url("https://user:secret@host/x", "a user or a password");
  expect_bad_url("s3://key:secret@bucket/x", "a user or a password");
  expect_bad_url("https://host/x?X-Amz-Signature=1", "a query or a fragment");
  expect_bad_url("s3:///key", "it has no bucket");
  expect_bad_url("https://", "it has no host");
  expect_bad_url("s3://b/a\nb", "a control character");
}

TEST(Url, ErrorsNeverContainCredentials) {
  for (const char* const url : {"https://user:hunter2@host/x", "https://host/x?signature=hunter2"}) {
    try {
      parse_url(url);
      FAIL() << url;
    } catch (const Error& error) {
      for (const std::string& text :
           {std::string(error.what()), error.file(), error.why(), error.hint(), error.found()}) {
        EXPECT_EQ(text.find("hunter2"), std::string::npos) << text;
      }
    }
  }
}

TEST(Url, KeysAreEncodedOnceWithCapitals) {
  EXPECT_EQ(percent_encode("a b+c/ü", true), "a%20b%2Bc/%C3%BC");
  EXPECT_EQ(percent_encode("a/b", false), "a%2Fb");
  EXPECT_EQ(percent_encode_rest("a%20b c/d+e%"), "a%20b%20c/d+e%25");
  EXPECT_EQ(encode_illegal("/a b%20c/ü?x=1&y=/|"), "/a%20b%20c/%C3%BC?x=1&y=/%7C");
  EXPECT_EQ(percent_decode("a%20b%zz%"), "a b%zz%");
  EXPECT_EQ(query_text({{"prefix", "a/b c"}, {"uploads", ""}}), "prefix=a%2Fb%20c&uploads=");
}

TEST(Url, AddressesOfServicesMayHaveAPath) {
  const Service service = service_of("https://h:1/storage/v\u00e9/", "HF_ENDPOINT");
  EXPECT_EQ(service.origin, "https://h:1");
  EXPECT_EQ(service.base, "/storage/v%C3%A9");
  EXPECT_EQ(service_of("https://h/", "HF_ENDPOINT").base, "");
  for (const char* const address :
       {"h/path", "https:///path", "https://h/path?x", "https://h/a b", "https://u:p@h/path"}) {
    test::expect_error(ErrorCode::kInvalidArgument, "HF_ENDPOINT is not the address of a service",
                       [&] { service_of(address, "HF_ENDPOINT"); });
  }
}

TEST(Url, OriginsHaveNoPath) {
  EXPECT_EQ(origin_of("http://127.0.0.1:9000/", "--endpoint-url"), "http://127.0.0.1:9000");
  for (const char* const address : {"127.0.0.1:9000", "ftp://h", "https://", "https://h/path", "https://u:p@h"}) {
    test::expect_error(ErrorCode::kInvalidArgument, "--endpoint-url is not the address of a service",
                       [&] { origin_of(address, "--endpoint-url"); });
  }
}

TEST(Url, AddressesOfThisMachineAndPrivateNetworksAreKnown) {
  for (const char* const host : {"localhost:80", "127.0.0.1", "127.9.9.9:1", "[::1]:80"})
    EXPECT_TRUE(is_loopback(host)) << host;
  for (const char* const host : {"localhost.evil.org", "128.0.0.1", "127.0.0.1.evil.org"})
    EXPECT_FALSE(is_loopback(host)) << host;
  for (const char* const host : {"10.0.0.1", "192.168.1.1:80", "172.16.0.1", "169.254.169.254", "[fe80::1]"}) {
    EXPECT_TRUE(is_private(host)) << host;
  }
  for (const char* const host : {"172.32.0.1", "example.org", "8.8.8.8"}) EXPECT_FALSE(is_private(host)) << host;
}

}  // namespace
}  // namespace shard::stores
