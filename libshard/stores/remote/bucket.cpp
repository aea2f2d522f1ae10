// Buckets of S3 and of services with its interface.
#include <fmt/format.h>

#include <algorithm>
#include <ctime>
#include <utility>

#include "libshard/core/ascii.h"
#include "libshard/core/digest.h"
#include "libshard/stores/remote/credentials.h"
#include "libshard/stores/remote/listing.h"
#include "libshard/stores/remote/place.h"

namespace shard::stores {

namespace {

constexpr const char* kGoogleOrigin = "https://storage.googleapis.com";
constexpr const char* kGoogleMetadata = "http://metadata.google.internal";
constexpr std::time_t kTokenMargin = 300;

/// The names of buckets: letters, digits, '-', '.', and '_' for old ones.
bool is_bucket_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && is_alphanumeric(name, "-._") && name.front() != '.';
}

/// A region becomes a part of a host's name.
bool is_region_name(std::string_view name) {
  return !name.empty() && name.find_first_not_of("abcdefghijklmnopqrstuvwxyz0123456789-") == std::string_view::npos;
}

/// The part of a body that the signature covers: its hash, unless TLS protects it or it does not leave this machine.
/// Hashing takes as long as all other steps together.
std::string payload_hash(const HttpRequest& request) {
  if (request.origin.starts_with("https:") || is_loopback(authority_of(request.origin))) return "UNSIGNED-PAYLOAD";
  Hasher hasher(HashAlgorithm::kSha256);
  hasher.update(request.data);
  hasher.update(request.body);
  return hasher.finish_hex();
}

class Bucket : public Place {
 public:
  Bucket(Transport& transport, const StoreRequest& request, const Environment& environment, const std::string& scheme,
         std::string bucket)
      : Place(transport, fmt::format("{}://{}", scheme, bucket)),
        bucket_(std::move(bucket)),
        is_anonymous_(request.is_anonymous),
        chain_(transport, environment) {
    if (!request.endpoint.empty()) set_endpoint(service_of(request.endpoint, "the endpoint"));
  }

  bool can_list() const override { return true; }
  bool can_write() const override { return true; }
  std::string error_code(const HttpAnswer& answer) const override { return s3_error_code(answer.body); }

  Listing list(const std::string& prefix, bool is_deep) override {
    ListingPages pages(prefix);
    Query query{{"list-type", "2"}, {"prefix", prefix}, {"encoding-type", "url"}};
    if (!is_deep) query["delimiter"] = "/";
    const std::string url = url_of(prefix);
    try {
      for (std::string token;;) {
        if (!token.empty()) query["continuation-token"] = token;
        const HttpAnswer answer = ask_any(
            [&] {
              HttpRequest request = request_of("");
              request.query = query;
              return request;
            },
            url);
        const bool is_refused = (answer.status == 401 || answer.status == 403) && error_code(answer) == "AccessDenied";
        if (is_refused && token.empty()) return {.refused = failed(answer, url)};
        if (!answer.is_ok()) throw failed(answer, url);
        token = pages.add_s3_page(answer.body);
        if (token.empty()) break;
      }
      return pages.take();
    } catch (Error& error) {
      throw error.in_file(url);
    }
  }

 protected:
  HttpRequest request_of(const std::string& key) override {
    HttpRequest request;
    const std::string path = key.empty() ? std::string() : "/" + percent_encode(key, true);
    const bool has_own_host = !has_endpoint() && bucket_.find('.') == std::string::npos;
    if (has_endpoint()) {
      request.origin = endpoint_.origin;
    } else if (has_own_host) {
      request.origin = fmt::format("https://{}.s3.{}.{}", bucket_, region(), amazon_domain(region()));
    } else {
      request.origin = fmt::format("https://s3.{}.{}", region(), amazon_domain(region()));
    }
    request.target = has_own_host ? (path.empty() ? "/" : path) : endpoint_.base + "/" + bucket_ + path;
    return request;
  }

  bool follows_redirects() const override { return false; }

  void explain(const HttpAnswer& answer, const std::string& code, Error& error) const override {
    if (code == "NoSuchBucket") error.because("there is no such bucket").hint("check the name and the endpoint");
    if (code == "RequestTimeTooSkewed") error.hint("set this machine's clock, which differs from the server's");
    if (code == "ExpiredToken" || code == "TokenRefreshRequired")
      error.hint("renew the credentials, which have expired");
    if (code == "SignatureDoesNotMatch") {
      error.hint("check AWS_SECRET_ACCESS_KEY").suggest(Remedy::kNameRegion);
    }
    if (code == "InvalidAccessKeyId") {
      error.hint("check AWS_ACCESS_KEY_ID").suggest(Remedy::kNameEndpoint);
    }
    if (answer.status == 0 && answer.hint.empty() && has_endpoint()) error.suggest(Remedy::kNameEndpoint);
    if (code == "InvalidObjectState") error.hint("the object is archived, for example in GLACIER: restore it first");
    const std::string& region = answer.header("x-amz-bucket-region");
    if (answer.status == 301 || code == "AuthorizationHeaderMalformed") {
      error.suggest(Remedy::kNameRegion, region);
    }
    const bool has_advice = !error.hint().empty() || !error.suggestions().empty();
    if (has_advice || (answer.status != 401 && answer.status != 403)) return;
    const bool writes = error.code() == ErrorCode::kResource;
    if (is_anonymous_) {
      error.suggest(Remedy::kSendCredentials);
    } else {
      error.hint(fmt::format("check that the credentials may {} the bucket", writes ? "write to" : "read"));
      if (!writes) error.suggest(Remedy::kAnonymous);
    }
  }

  bool is_anonymous() const { return is_anonymous_; }
  CredentialsChain& chain() { return chain_; }

  std::string region() {
    const std::scoped_lock lock(mutex_);
    return region_;
  }
  /// \returns whether it is a different one.
  bool set_region(const std::string& region) {
    const std::scoped_lock lock(mutex_);
    return std::exchange(region_, region) != region;
  }
  void set_endpoint(Service endpoint) { endpoint_ = std::move(endpoint); }
  bool has_endpoint() const { return !endpoint_.origin.empty(); }

  void sign(HttpRequest& request, const Credentials& credentials) {
    request.headers["host"] = authority_of(request.origin);
    const bool is_empty = request.data.empty() && request.body.empty();
    if (!is_empty) request.headers["x-amz-content-sha256"] = payload_hash(request);
    sign_s3(credentials, request.method, request.target, request.query, region(), std::time(nullptr), request.headers);
  }

 private:
  const std::string bucket_;
  const bool is_anonymous_;
  Service endpoint_;  ///< Without an origin: AWS.
  std::mutex mutex_;
  std::string region_;
  CredentialsChain chain_;
};

class S3Bucket final : public Bucket {
 public:
  S3Bucket(Transport& transport, const StoreRequest& request, const Environment& environment, const std::string& bucket)
      : Bucket(transport, request, environment, "s3", bucket) {
    if (!has_endpoint()) {
      if (const std::optional<Service> stated = chain().endpoint("s3")) set_endpoint(*stated);
    }
    if (!has_endpoint() && bucket.ends_with("--x-s3")) {
      throw Error(ErrorCode::kUnsupported, "cannot use directory buckets (S3 Express One Zone)")
          .in_file(root())
          .hint("copy the objects to an ordinary bucket");
    }
    std::string region = request.region.empty() ? chain().region() : request.region;
    is_region_stated_ = !request.region.empty();
    set_region(region.empty() ? "us-east-1" : region);
  }

 protected:
  void authorize(HttpRequest& request) override {
    if (!is_anonymous()) sign(request, chain().get());
  }

  /// Takes the region that the server names, and credentials that are newer than those that it refused.
  bool mend(const HttpAnswer& answer) override {
    const std::string& region = answer.header("x-amz-bucket-region");
    if (is_region_name(region) && !is_region_stated_ && set_region(region)) return true;
    const std::string code = error_code(answer);
    const bool is_refused = answer.status == 401 || answer.status == 403 || code == "ExpiredToken";
    return is_refused && !is_anonymous() && chain().renew();
  }

 private:
  bool is_region_stated_ = false;
};

/// Google Cloud Storage by its XML interface: signed with HMAC keys, or with a token of OAuth.
class GoogleBucket final : public Bucket {
 public:
  GoogleBucket(Transport& transport, const StoreRequest& request, const Environment& environment,
               const std::string& bucket)
      : Bucket(transport, request, environment, "gs", bucket) {
    if (!has_endpoint()) set_endpoint({kGoogleOrigin});
    set_region(request.region.empty() ? "auto" : request.region);
    keys_ = {environment("GS_ACCESS_KEY_ID"), environment("GS_SECRET_ACCESS_KEY"), ""};
    for (const char* const name : {"GOOGLE_OAUTH_ACCESS_TOKEN", "CLOUDSDK_AUTH_ACCESS_TOKEN"}) {
      if (token_.empty()) token_ = environment(name);
    }
    has_key_file_ = !environment("GOOGLE_APPLICATION_CREDENTIALS").empty();
    const std::string host = environment("GCE_METADATA_HOST");
    metadata_ = host.empty() ? kGoogleMetadata : "http://" + host;
  }

 protected:
  void authorize(HttpRequest& request) override {
    if (is_anonymous()) return;
    if (!keys_.key_id.empty() && !keys_.secret.empty()) return sign(request, keys_);
    use_own_names(request.headers);
    request.headers["authorization"] = "Bearer " + token();
  }

  bool mend(const HttpAnswer& answer) override {
    const std::scoped_lock lock(mutex_);
    const bool is_renewable = answer.status == 401 && expires_ != 0;
    if (is_renewable) token_.clear();
    return is_renewable;
  }

 private:
  /// Google's names for headers of S3. Requests that are signed as S3's keep S3's.
  static void use_own_names(Headers& headers) {
    constexpr std::string_view kForeign = "x-amz-";
    Headers renamed;
    for (const auto& [name, value] : headers) {
      if (name == "if-none-match") {
        renamed["x-goog-if-generation-match"] = "0";
      } else if (name.starts_with(kForeign)) {
        renamed["x-goog-" + name.substr(kForeign.size())] = value;
      } else {
        renamed[name] = value;
      }
    }
    renamed.erase("x-goog-checksum-crc32c");
    renamed.erase("x-goog-checksum-algorithm");
    headers = std::move(renamed);
  }

  /// The token of the environment, or of the machine's service account. \throws Error kNotFound
  std::string token() {
    const std::scoped_lock lock(mutex_);
    const bool is_ending = expires_ != 0 && std::time(nullptr) > expires_ - kTokenMargin;
    if (token_.empty() || is_ending) ask_machine();
    return token_;
  }

  void ask_machine() {
    HttpRequest request;
    request.origin = metadata_;
    request.target = "/computeMetadata/v1/instance/service-accounts/default/token";
    request.headers["metadata-flavor"] = "Google";
    request.uses_proxy = false;
    HttpLimits limits;
    limits.connect = std::chrono::milliseconds(1000);
    limits.stall = std::chrono::milliseconds(2000);
    const HttpAnswer answer = transport().send_once(request, limits);
    if (answer.is_ok() && parse_token(answer.body, token_, expires_)) return;
    Error error(ErrorCode::kNotFound, "cannot find credentials for the object store");
    error.in_file(root()).suggest(Remedy::kAnonymous);
    if (has_key_file_) {
      throw error.because("the file of GOOGLE_APPLICATION_CREDENTIALS is not read, only tokens and keys")
          .hint("run: export GOOGLE_OAUTH_ACCESS_TOKEN=$(gcloud auth application-default print-access-token)");
    }
    throw error.because("the environment has none, and this is not a machine of Google Cloud")
        .hint("set GOOGLE_OAUTH_ACCESS_TOKEN, or GS_ACCESS_KEY_ID and GS_SECRET_ACCESS_KEY");
  }

  Credentials keys_;
  bool has_key_file_ = false;
  std::string metadata_;
  std::mutex mutex_;
  std::string token_;
  std::time_t expires_ = 0;  ///< 0: the token is from the environment.
};

}  // namespace

std::unique_ptr<Place> open_bucket(Transport& transport, const StoreRequest& request, const Environment& environment,
                                   const std::string& scheme, const std::string& bucket) {
  if (!is_bucket_name(bucket)) {
    Error error(ErrorCode::kInvalidArgument, "cannot use the URL: it does not name a bucket");
    if (bucket.starts_with("arn:")) error.hint("name an access point by its alias, which ends in -s3alias");
    throw error.in_file(fmt::format("{}://{}", scheme, bucket)).expected(fmt::format("{}://BUCKET/PREFIX", scheme));
  }
  if (scheme == "gs") return std::make_unique<GoogleBucket>(transport, request, environment, bucket);
  return std::make_unique<S3Bucket>(transport, request, environment, bucket);
}

}  // namespace shard::stores
