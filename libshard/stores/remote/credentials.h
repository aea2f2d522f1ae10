/// \file The places in which credentials of AWS are looked for, in the order of its clients. Inside
///   libshard/stores/remote only.
#pragma once

#include <ctime>
#include <map>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include "libshard/stores/remote/http.h"
#include "libshard/stores/remote/place.h"
#include "libshard/stores/remote/url.h"

namespace shard::stores {

/// The domain of the services in a region: China and the European Sovereign Cloud have their own.
std::string_view amazon_domain(std::string_view region);

/// The settings of each profile, by name. Those of a section "[services NAME]" have that whole text as their name.
using Profiles = std::map<std::string, std::map<std::string, std::string>>;
/// Adds the sections of a file of profiles: "[name]", and in a config file "[profile name]", whose name may have
/// quotes, and "[services NAME]". Keys have any case. Settings below "s3 =" that are indented further have
/// keys such as "s3.endpoint_url". Other sections and lines that are not "key = value" or "key: value" are ignored.
void add_profiles(std::string_view text, bool is_config, Profiles& profiles);

/// Reads a document of AccessKeyId, SecretAccessKey, Token or SessionToken, and Expiration. Nothing if one is missing.
std::optional<Credentials> parse_credentials(std::string_view json);
/// The credentials in an answer of STS, which is XML. Nothing if a key is missing.
std::optional<Credentials> parse_sts_credentials(std::string_view xml);
/// The seconds since 1970 of "2026-01-31T12:00:00Z"; 0 if it is not a time.
std::time_t parse_time(const std::string& text);

/// Reads Google's document with access_token and expires_in (seconds). \returns false if it is a different one.
bool parse_token(std::string_view json, std::string& token, std::time_t& expires);

/// Finds credentials at the first use and again shortly before they end. Threads: safe.
class CredentialsChain {
 public:
  CredentialsChain(Transport& transport, Environment environment)
      : transport_(transport), environment_(std::move(environment)) {}

  /// \throws Error kNotFound  there are none; kInvalidArgument  a setting is wrong; kInterrupted
  Credentials get();
  /// Forgets credentials that a server refused. \returns whether there may be newer ones.
  bool renew();
  /// The region of the environment or the profile; empty if there is none.
  std::string region();
  /// The address of a service ("s3", "sts") in the environment or the profile: for this service or for all. Nothing if
  /// there is none. \throws Error kInvalidArgument  the profile names services that the file lacks; see service_of
  std::optional<Service> endpoint(const std::string& service);

 private:
  std::optional<Credentials> find();
  std::optional<Credentials> from_environment() const;
  std::optional<Credentials> from_web_identity(const std::string& token_file, const std::string& role);
  std::optional<Credentials> from_profile(const std::string& name, int depth);
  std::optional<Credentials> from_container();
  std::optional<Credentials> from_instance();
  std::optional<Credentials> from_source(const std::string& source);
  Credentials assume_role(const Credentials& source, Query query);
  Service token_service();
  HttpRequest token_request();
  /// The same as region. \pre the mutex is locked
  std::string own_region();
  /// The same as endpoint. \pre the mutex is locked
  std::optional<Service> own_endpoint(const std::string& service);
  /// A setting of the profile, such as "region"; empty if it is missing. \pre the mutex is locked
  std::string setting_of_profile(const std::string& key);
  std::string variable(const std::string& name) const { return environment_(name); }
  const Profiles& profiles();
  std::string profile_name() const;

  Transport& transport_;
  const Environment environment_;
  std::mutex mutex_;
  std::optional<Credentials> known_;
  std::optional<Profiles> profiles_;
};

}  // namespace shard::stores
