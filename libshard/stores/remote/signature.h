/// \file
/// AWS Signature Version 4. Source: AWS, "Create a signed AWS API request" and "Authenticating Requests: Using the
/// Authorization Header". Inside libshard/stores/remote only.
#pragma once

#include <ctime>
#include <map>
#include <string>
#include <string_view>

#include "libshard/stores/remote/url.h"

namespace shard::stores {

/// Names in lower case.
using Headers = std::map<std::string, std::string>;

struct Credentials {
  std::string key_id, secret, token;  ///< `token` is empty for keys that do not expire.
  std::time_t expires = 0;            ///< 0: never.
};

/// The parts of a request that a signature covers. All headers are signed.
struct SignedRequest {
  std::string_view method;
  std::string_view target;  ///< The encoded path, with the slash in front.
  const Query& query;
  const Headers& headers;  ///< Include "host".
  std::string_view payload_hash;
};

struct SigningScope {
  std::string_view region, service;
  std::time_t time;
};

/// The SHA-256 of an empty body.
inline constexpr std::string_view kEmptyHash = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

/// "20130524T000000Z".
std::string signing_date(std::time_t time);

/// The value of the header "authorization".
std::string authorization(const Credentials& credentials, const SignedRequest& request, const SigningScope& scope);

/// Signs a request to S3: adds x-amz-date, the token and authorization to `headers`, and the hash of an empty body as
/// x-amz-content-sha256 unless that is present.
void sign_s3(const Credentials& credentials, std::string_view method, std::string_view target, const Query& query,
             std::string_view region, std::time_t time, Headers& headers);

}  // namespace shard::stores
