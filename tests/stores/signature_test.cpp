// Signatures equal those that AWS publishes: the examples of "Signature Calculations for the Authorization Header"
// (S3), and of the test suite for Signature Version 4 (get-vanilla and others).
#include "libshard/stores/remote/signature.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace shard::stores {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;

const Credentials kExampleKeys{"AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY", ""};
constexpr std::time_t kExampleTime = 1369353600;  // 2013-05-24T00:00:00Z

std::string s3_example(const std::string& target, const Query& query, Headers headers) {
  headers["host"] = "examplebucket.s3.amazonaws.com";
  sign_s3(kExampleKeys, "GET", target, query, "us-east-1", kExampleTime, headers);
  return headers["authorization"];
}

TEST(Signature, EqualsTheExamplesOfS3) {
  EXPECT_EQ(s3_example("/test.txt", {}, {{"range", "bytes=0-9"}}),
            "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
            "SignedHeaders=host;range;x-amz-content-sha256;x-amz-date, "
            "Signature=f0e8bdb87c964420e857bd35b5d6ed310bd44f0170aba48dd91039c6036bdb41");
  EXPECT_THAT(s3_example("/", {{"lifecycle", ""}}, {}),
              EndsWith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"));
  EXPECT_THAT(s3_example("/", {{"prefix", "J"}, {"max-keys", "2"}}, {}),
              EndsWith("Signature=34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"));
}

/// The suite signs only the headers "host" and "x-amz-date".
std::string suite_example(std::string_view method, std::string_view target, const Query& query) {
  const Credentials keys{"AKIDEXAMPLE", "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", ""};
  const Headers headers{{"host", "example.amazonaws.com"}, {"x-amz-date", "20150830T123600Z"}};
  return authorization(keys, {method, target, query, headers, kEmptyHash},
                       {.region = "us-east-1", .service = "service", .time = 1440938160});
}

TEST(Signature, EqualsTheTestSuite) {
  EXPECT_THAT(suite_example("GET", "/", {}),
              EndsWith("Signature=5fa00fa31553b73ebf1942676e86291e8372ff2a2260956d9b8aae1d763fbf31"));
  EXPECT_THAT(suite_example("POST", "/", {}),
              EndsWith("Signature=5da7c1a2acd57cee7505fc6676e4e544621c30862966e37dddb68e92efbe5d6b"));
  EXPECT_THAT(suite_example("GET", "/", {{"Param1", "value1"}, {"Param2", "value2"}}),
              EndsWith("Signature=b97d918cfa904a5beff61c982a1b6f458b799221646efd99d3219ec94cdf2500"));
}

TEST(Signature, CoversATokenAndNeverContainsTheSecret) {
  Headers headers{{"host", "h"}};
  sign_s3({"ID", "SECRETSECRET", "TOKEN"}, "GET", "/", {}, "eu-central-1", kExampleTime, headers);
  EXPECT_EQ(headers["x-amz-security-token"], "TOKEN");
  EXPECT_THAT(headers["authorization"], HasSubstr("x-amz-date;x-amz-security-token"));
  EXPECT_THAT(headers["authorization"], ::testing::Not(HasSubstr("SECRETSECRET")));
}

}  // namespace
}  // namespace shard::stores
