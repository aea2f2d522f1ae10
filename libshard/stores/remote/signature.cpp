#include "libshard/stores/remote/signature.h"

#include <fmt/format.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <array>
#include <span>

#include "libshard/core/digest.h"

namespace shard::stores {

namespace {

std::string hmac_sha256(std::string_view key, std::string_view text) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> out{};
  unsigned bytes = 0;
  HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()),
       text.size(), out.data(), &bytes);
  return {reinterpret_cast<const char*>(out.data()), bytes};
}

std::string sha256_hex(std::string_view text) {
  Hasher hasher(HashAlgorithm::kSha256);
  hasher.update(text);
  return hasher.finish_hex();
}

}  // namespace

std::string signing_date(std::time_t time) {
  std::tm parts{};
  gmtime_r(&time, &parts);
  std::array<char, 32> text{};
  return {text.data(), std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts)};
}

std::string authorization(const Credentials& credentials, const SignedRequest& request, const SigningScope& scope) {
  std::string names, lines;
  for (const auto& [name, value] : request.headers) {
    names += (names.empty() ? "" : ";") + name;
    lines += fmt::format("{}:{}\n", name, value);
  }
  const std::string canonical = fmt::format("{}\n{}\n{}\n{}\n{}\n{}", request.method, request.target,
                                            query_text(request.query), lines, names, request.payload_hash);
  const std::string date = signing_date(scope.time), day = date.substr(0, 8);
  const std::string place = fmt::format("{}/{}/{}/aws4_request", day, scope.region, scope.service);
  const std::string text = fmt::format("AWS4-HMAC-SHA256\n{}\n{}\n{}", date, place, sha256_hex(canonical));
  std::string key = hmac_sha256("AWS4" + credentials.secret, day);
  for (const std::string_view part : {scope.region, scope.service, std::string_view("aws4_request")}) {
    key = hmac_sha256(key, part);
  }
  const std::string signature = hmac_sha256(key, text);
  return fmt::format("AWS4-HMAC-SHA256 Credential={}/{}, SignedHeaders={}, Signature={}", credentials.key_id, place,
                     names, to_hex(std::as_bytes(std::span(signature))));
}

void sign_s3(const Credentials& credentials, std::string_view method, std::string_view target, const Query& query,
             std::string_view region, std::time_t time, Headers& headers) {
  headers["x-amz-date"] = signing_date(time);
  const std::string hash = headers.emplace("x-amz-content-sha256", kEmptyHash).first->second;
  if (!credentials.token.empty()) headers["x-amz-security-token"] = credentials.token;
  headers["authorization"] = authorization(credentials, {method, target, query, headers, hash},
                                           {.region = region, .service = "s3", .time = time});
}

}  // namespace shard::stores
