// The files and answers in which credentials are found, and the waits between attempts.
#include "libshard/stores/remote/credentials.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <ctime>
#include <fstream>
#include <iterator>

#include "tests/support/expect_error.h"
#include "tests/support/temp_folder.h"

namespace shard::stores {
namespace {

constexpr StoreListener kNoListener{nullptr, [](void*) { return false; }, [](void*, ConstBytes) {}};

class Chain : public ::testing::Test {
 protected:
  std::map<std::string, std::string> variables{{"AWS_EC2_METADATA_DISABLED", "true"}};
  Transport transport{{}, kNoListener};

  CredentialsChain chain() {
    return {transport, [this](const std::string& name) {
              const auto found = variables.find(name);
              return found == variables.end() ? std::string() : found->second;
            }};
  }
  void expect_failure(ErrorCode code, const std::string& words) {
    test::expect_error(code, words, [&] { chain().get(); });
  }
};

TEST_F(Chain, TakesTheEnvironmentFirst) {
  variables["AWS_ACCESS_KEY_ID"] = "ID";
  expect_failure(ErrorCode::kInvalidArgument, "AWS_SECRET_ACCESS_KEY is not set");
  variables["AWS_SECRET_ACCESS_KEY"] = "SECRET";
  variables["AWS_SESSION_TOKEN"] = "TOKEN";
  EXPECT_EQ(chain().get().token, "TOKEN");
}

TEST_F(Chain, WithoutCredentialsIsAnErrorThatNamesTheVariables) {
  expect_failure(ErrorCode::kNotFound, "cannot find credentials");
}

TEST_F(Chain, TakesAProfileItsRegionAndItsProcess) {
  const test::TempFolder folder;
  const std::string config = folder.path() + "/config", keys = folder.path() + "/credentials";
  std::ofstream(config) << "[default]\nregion = eu-west-1\n[profile work]\nregion=eu-north-1\n"
                        << "credential_process = echo '{\"AccessKeyId\": \"P\", \"SecretAccessKey\": \"S\"}'\n"
                        << "[profile loop]\nrole_arn = r\nsource_profile = loop\n";
  std::ofstream(keys) << "# a comment\n[default]\naws_access_key_id = D\naws_secret_access_key = S\n";
  variables["AWS_CONFIG_FILE"] = config;
  variables["AWS_SHARED_CREDENTIALS_FILE"] = keys;
  EXPECT_EQ(chain().get().key_id, "D");
  EXPECT_EQ(chain().region(), "eu-west-1");
  variables["AWS_PROFILE"] = "work";
  EXPECT_EQ(chain().get().key_id, "P");
  EXPECT_EQ(chain().region(), "eu-north-1");
  variables["AWS_DEFAULT_REGION"] = "us-east-2";
  EXPECT_EQ(chain().region(), "us-east-2");
  variables["AWS_REGION"] = "us-west-2";
  EXPECT_EQ(chain().region(), "us-west-2");
  variables["AWS_PROFILE"] = "absent";
  expect_failure(ErrorCode::kInvalidArgument, "there is no profile 'absent'");
  variables["AWS_PROFILE"] = "loop";
  expect_failure(ErrorCode::kInvalidArgument, "name each other in a circle");
}

TEST_F(Chain, AsksAgainFiveMinutesBeforeCredentialsEnd) {
  const test::TempFolder folder;
  const std::string config = folder.path() + "/config", calls = folder.path() + "/calls";
  variables["AWS_CONFIG_FILE"] = config;
  const auto count_calls = [&](std::time_t seconds_left) {
    std::array<char, 32> end{};
    const std::time_t expires = std::time(nullptr) + seconds_left;
    std::strftime(end.data(), end.size(), "%Y-%m-%dT%H:%M:%SZ", std::gmtime(&expires));
    std::ofstream(config) << "[default]\ncredential_process = echo x >>" << calls
                          << R"(; echo '{"AccessKeyId": "P", "SecretAccessKey": "S", "Expiration": ")" << end.data()
                          << "\"}'\n";
    std::ofstream(calls).close();
    CredentialsChain asked = chain();
    for (int i = 0; i < 3; ++i) EXPECT_EQ(asked.get().key_id, "P");
    std::ifstream file(calls);
    return std::count(std::istreambuf_iterator<char>(file), {}, 'x');
  };
  EXPECT_EQ(count_calls(250), 3);
  EXPECT_EQ(count_calls(1000), 1);
}

TEST_F(Chain, AsksOnlyTheContainersOwnServiceWithoutHttps) {
  variables["AWS_CONTAINER_AUTHORIZATION_TOKEN"] = "token";
  for (const char* const host : {"169.254.170.2.example.org", "169.254.170.24", "example.org:169"}) {
    variables["AWS_CONTAINER_CREDENTIALS_FULL_URI"] = std::string("http://") + host + "/role";
    expect_failure(ErrorCode::kInvalidArgument, "leads to a different machine without HTTPS");
  }
  variables["AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"] = "/role";
  expect_failure(ErrorCode::kNotFound, "the container's service returned no credentials");
}

TEST(Profiles, OfAConfigFileHaveAPrefix) {
  Profiles profiles;
  add_profiles("[profile a]\nregion = x\n[b]\nregion = y\n[default]\nregion=z\n  nested = 1\nno line\n", true,
               profiles);
  EXPECT_EQ(profiles["a"]["region"], "x");
  EXPECT_FALSE(profiles.contains("b"));
  EXPECT_EQ(profiles["default"].size(), 1U);
}

TEST(Profiles, AreReadAsPythonReadsThem) {
  Profiles profiles;
  add_profiles("[profile \"my own\"]\nREGION: eu-west-1\nRole_Arn = arn:aws:x\n", true, profiles);
  EXPECT_EQ(profiles["my own"]["region"], "eu-west-1");
  EXPECT_EQ(profiles["my own"]["role_arn"], "arn:aws:x");
  add_profiles("[a]\n  key = x\n  s3 =\n    key = y\n  more = z\n[b]\nkey = x\n", false, profiles);
  EXPECT_EQ(profiles["a"],
            (std::map<std::string, std::string>{{"key", "x"}, {"s3", ""}, {"s3.key", "y"}, {"more", "z"}}));
  EXPECT_EQ(profiles["b"]["key"], "x");
}

TEST(Profiles, ServicesHaveSettingsOfTheirOwn) {
  Profiles profiles;
  add_profiles(
      "[profile a]\nservices = local\ns3 =\n  addressing_style = path\nregion = x\n"
      "[services local]\ns3 = \n  endpoint_url = http://s3\n  Other=1\nsts =\n\tendpoint_url = http://sts\n"
      "[services \"my own\"]\ns3 =\n endpoint_url = http://own\n",
      true, profiles);
  EXPECT_EQ(profiles["a"]["services"], "local");
  EXPECT_EQ(profiles["a"]["s3.addressing_style"], "path");
  EXPECT_EQ(profiles["a"]["region"], "x");
  EXPECT_EQ(profiles["[services local]"]["s3.endpoint_url"], "http://s3");
  EXPECT_EQ(profiles["[services local]"]["s3.other"], "1");
  EXPECT_EQ(profiles["[services local]"]["sts.endpoint_url"], "http://sts");
  EXPECT_EQ(profiles["[services my own]"]["s3.endpoint_url"], "http://own");
}

TEST(Regions, OfChinaAndTheSovereignCloudHaveTheirOwnDomains) {
  EXPECT_EQ(amazon_domain("us-gov-west-1"), "amazonaws.com");
  EXPECT_EQ(amazon_domain("cn-north-1"), "amazonaws.com.cn");
  EXPECT_EQ(amazon_domain("eusc-de-east-1"), "amazonaws.eu");
}

TEST(CredentialsDocument, NeedsBothKeys) {
  const auto found =
      parse_credentials(R"({"AccessKeyId":"I","SecretAccessKey":"S","Token":"T","Expiration":"2026-01-31T12:00:00Z"})");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->token, "T");
  EXPECT_EQ(found->expires, 1769860800);
  EXPECT_FALSE(parse_credentials("{\"AccessKeyId\":\"I\"}"));
  EXPECT_FALSE(parse_credentials("[]"));
  EXPECT_FALSE(parse_credentials("{"));
}

TEST(Waits, DoubleUpToALimitAndFollowTheServer) {
  using std::chrono::milliseconds;
  const HttpLimits limits;
  HttpAnswer answer;
  EXPECT_EQ(wait_before(1, answer, limits, 0.0), milliseconds(0));
  EXPECT_EQ(wait_before(1, answer, limits, 0.5), milliseconds(100));
  EXPECT_EQ(wait_before(5, answer, limits, 0.5), milliseconds(1600));
  EXPECT_EQ(wait_before(60, answer, limits, 0.5), milliseconds(10000));
  answer.headers["retry-after"] = "2";
  EXPECT_EQ(wait_before(1, answer, limits, 0.0), milliseconds(2000));
  answer.headers["retry-after"] = "1000000000";
  EXPECT_EQ(wait_before(1, answer, limits, 0.0), limits.longest_asked);
  answer.headers["retry-after"] = "Wed, 21 Oct 2015 07:28:00 GMT";
  EXPECT_EQ(wait_before(1, answer, limits, 0.0), milliseconds(0));
}

}  // namespace
}  // namespace shard::stores
