#include "libshard/stores/remote/credentials.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <fstream>
#include <memory>
#include <pugixml.hpp>

#include "libshard/core/ascii.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/stores/remote/json_answer.h"

namespace shard::stores {

namespace {

constexpr std::time_t kRenewBefore = 300;       ///< Seconds before the end of credentials.
constexpr std::size_t kMostSettings = 1 << 20;  ///< Bytes of a file or an answer with settings.
constexpr int kMostProfiles = 8;                ///< In a chain of source_profile.
constexpr const char* kInstanceOrigin = "http://169.254.169.254";
constexpr const char* kContainerOrigin = "http://169.254.170.2";
constexpr std::array<std::string_view, 3> kContainerHosts{"169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
constexpr std::string_view kAdvice = "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_PROFILE";

std::string read_settings(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text;
  std::array<char, 4096> buffer{};
  while (file.read(buffer.data(), buffer.size()) || file.gcount() > 0) {
    text.append(buffer.data(), static_cast<std::size_t>(file.gcount()));
    if (text.size() > kMostSettings) {
      throw Error(ErrorCode::kInvalidArgument, "the file of credentials is too large").in_file(path);
    }
  }
  return text;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \t\r\n");
  if (begin == std::string_view::npos) return {};
  return text.substr(begin, text.find_last_not_of(" \t\r\n") - begin + 1);
}

Error bad_setting(const std::string& message) { return Error(ErrorCode::kInvalidArgument, message); }

/// The output of a command that prints credentials.
std::string output_of(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(::popen(command.c_str(), "re"), ::pclose);
  std::string text;
  std::array<char, 4096> buffer{};
  while (pipe != nullptr && text.size() < kMostSettings) {
    const std::size_t bytes = std::fread(buffer.data(), 1, buffer.size(), pipe.get());
    if (bytes == 0) break;
    text.append(buffer.data(), bytes);
  }
  return text;
}

/// The limits for services on this machine, which answer at once or do not exist.
HttpLimits local_limits() {
  HttpLimits limits;
  limits.connect = std::chrono::milliseconds(1000);
  limits.stall = std::chrono::milliseconds(2000);
  return limits;
}

/// The address of a service and its path.
HttpRequest request_to(const std::string& address, std::string_view named_by) {
  const std::size_t end = std::min(address.find('/', address.find("://") + 3), address.size());
  HttpRequest request;
  request.origin = origin_of(address.substr(0, end), named_by);
  if (end < address.size()) request.target = address.substr(end);
  request.uses_proxy = false;
  return request;
}

std::string setting_of(const std::map<std::string, std::string>& profile, const std::string& key) {
  const auto found = profile.find(key);
  return found == profile.end() ? std::string() : found->second;
}

std::optional<Credentials> keys_of(const std::map<std::string, std::string>& profile) {
  Credentials keys{setting_of(profile, "aws_access_key_id"), setting_of(profile, "aws_secret_access_key"),
                   setting_of(profile, "aws_session_token")};
  return keys.key_id.empty() || keys.secret.empty() ? std::nullopt : std::optional(keys);
}

Error no_role(const std::string& role, const HttpAnswer& answer) {
  return Error(ErrorCode::kNotFound, fmt::format("cannot assume the role {}", role))
      .because(answer.failure.empty() ? fmt::format("the token service answers HTTP {}", answer.status)
                                      : answer.failure);
}

}  // namespace

std::string_view amazon_domain(std::string_view region) {
  constexpr std::array<std::pair<std::string_view, std::string_view>, 2> kOthers{
      {{"cn-", "amazonaws.com.cn"}, {"eusc-", "amazonaws.eu"}}};
  for (const auto& [prefix, domain] : kOthers) {
    if (region.starts_with(prefix)) return domain;
  }
  return "amazonaws.com";
}

namespace {

/// A name without quotes around it.
std::string_view unquoted(std::string_view name) {
  const bool is_quoted = name.size() > 1 && name.front() == '"' && name.back() == '"';
  return is_quoted ? name.substr(1, name.size() - 2) : name;
}

std::string services_section(std::string_view name) { return fmt::format("[services {}]", name); }

/// The name in Profiles of the section with this text between its brackets; nothing for a section of another kind.
std::optional<std::string> section_name(std::string_view text, bool is_config) {
  constexpr std::string_view kProfile = "profile ", kServices = "services ";
  if (text.starts_with(kProfile)) return std::string(unquoted(trimmed(text.substr(kProfile.size()))));
  if (!is_config || text == "default") return std::string(text);
  if (text.starts_with(kServices)) return services_section(unquoted(trimmed(text.substr(kServices.size()))));
  return std::nullopt;
}

}  // namespace

void add_profiles(std::string_view text, bool is_config, Profiles& profiles) {
  std::map<std::string, std::string>* section = nullptr;
  std::string above;  // The key of nested settings, with a dot at its end; empty: they belong to a value.
  std::size_t indent = std::string_view::npos;  // The spaces before the last key that is not nested. None: npos.
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    const std::string_view content = trimmed(line);
    if (content.empty() || content.front() == '#' || content.front() == ';') continue;
    if (content.front() == '[' && content.back() == ']') {
      const auto name = section_name(trimmed(content.substr(1, content.size() - 2)), is_config);
      section = name ? &profiles[*name] : nullptr;
      above.clear();
      indent = std::string_view::npos;
      continue;
    }
    const std::size_t equals = line.find_first_of("=:");
    const auto spaces = static_cast<std::size_t>(content.data() - line.data());
    const bool is_nested = spaces > indent;
    if (section == nullptr || (is_nested && above.empty()) || equals == std::string_view::npos) continue;
    const std::string key = lower_case(std::string(trimmed(line.substr(0, equals))));
    const std::string_view value = trimmed(line.substr(equals + 1));
    section->insert_or_assign(is_nested ? above + key : key, std::string(value));
    if (is_nested) continue;
    above = value.empty() ? key + "." : std::string();
    indent = spaces;
  }
}

std::time_t parse_time(const std::string& text) {
  std::tm parts{};
  return ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%S", &parts) == nullptr ? 0 : ::timegm(&parts);
}

std::optional<Credentials> parse_credentials(std::string_view json) {
  const nlohmann::json document = parse_answer(json);
  const std::string token = text_in(document, "SessionToken");
  Credentials credentials{text_in(document, "AccessKeyId"), text_in(document, "SecretAccessKey"),
                          token.empty() ? text_in(document, "Token") : token,
                          parse_time(text_in(document, "Expiration"))};
  if (credentials.key_id.empty() || credentials.secret.empty()) return std::nullopt;
  return credentials;
}

std::optional<Credentials> parse_sts_credentials(std::string_view xml) {
  pugi::xml_document document;
  if (!document.load_buffer(xml.data(), xml.size())) return std::nullopt;
  const pugi::xml_node found =
      document.find_node([](const pugi::xml_node& node) { return std::string_view(node.name()) == "Credentials"; });
  Credentials credentials{found.child_value("AccessKeyId"), found.child_value("SecretAccessKey"),
                          found.child_value("SessionToken"), parse_time(found.child_value("Expiration"))};
  if (credentials.key_id.empty() || credentials.secret.empty()) return std::nullopt;
  return credentials;
}

bool parse_token(std::string_view json, std::string& token, std::time_t& expires) {
  const nlohmann::json document = parse_answer(json);
  if (!document.is_object()) return false;
  const auto text = document.find("access_token"), seconds = document.find("expires_in");
  if (text == document.end() || !text->is_string() || seconds == document.end() || !seconds->is_number()) return false;
  token = text->get<std::string>();
  expires = std::time(nullptr) + static_cast<std::time_t>(std::clamp(seconds->get<double>(), 0.0, 1e6));
  return !token.empty();
}

Credentials CredentialsChain::get() {
  const std::scoped_lock lock(mutex_);
  const bool is_ending = known_ && known_->expires != 0 && std::time(nullptr) > known_->expires - kRenewBefore;
  if (!known_ || is_ending) known_ = find();
  if (known_) return *known_;
  throw Error(ErrorCode::kNotFound, "cannot find credentials for the object store")
      .because("neither the environment nor the files of profiles nor the machine has any")
      .hint(kAdvice)
      .suggest(Remedy::kAnonymous);
}

bool CredentialsChain::renew() {
  const std::scoped_lock lock(mutex_);
  const bool is_temporary = known_ && known_->expires != 0;
  if (is_temporary) known_.reset();
  return is_temporary;
}

std::string CredentialsChain::region() {
  const std::scoped_lock lock(mutex_);
  return own_region();
}

std::string CredentialsChain::own_region() {
  for (const char* const name : {"AWS_REGION", "AWS_DEFAULT_REGION"}) {
    if (std::string region = variable(name); !region.empty()) return region;
  }
  return setting_of_profile("region");
}

std::optional<Service> CredentialsChain::endpoint(const std::string& service) {
  const std::scoped_lock lock(mutex_);
  return own_endpoint(service);
}

std::optional<Service> CredentialsChain::own_endpoint(const std::string& service) {
  for (const std::string& name : {"AWS_ENDPOINT_URL_" + upper_case(service), std::string("AWS_ENDPOINT_URL")}) {
    if (const std::string address = variable(name); !address.empty()) return service_of(address, name);
  }
  if (const std::string services = setting_of_profile("services"); !services.empty()) {
    const auto section = profiles().find(services_section(services));
    if (section == profiles().end()) {
      throw bad_setting(fmt::format("there is no section {} in the config file of AWS", services_section(services)))
          .because(fmt::format("the profile '{}' names it", profile_name()));
    }
    if (const std::string address = setting_of(section->second, service + ".endpoint_url"); !address.empty())
      return service_of(address, "endpoint_url of " + services_section(services));
  }
  const std::string address = setting_of_profile("endpoint_url");
  return address.empty() ? std::nullopt : std::optional(service_of(address, "endpoint_url of the profile"));
}

std::string CredentialsChain::setting_of_profile(const std::string& key) {
  const auto profile = profiles().find(profile_name());
  return profile == profiles().end() ? std::string() : setting_of(profile->second, key);
}

std::string CredentialsChain::profile_name() const {
  for (const char* const name : {"AWS_PROFILE", "AWS_DEFAULT_PROFILE"}) {
    if (std::string profile = variable(name); !profile.empty()) return profile;
  }
  return "default";
}

const Profiles& CredentialsChain::profiles() {
  if (profiles_) return *profiles_;
  profiles_.emplace();
  const std::string home = variable("HOME");
  const auto path = [&](const char* name, const char* file) {
    const std::string stated = variable(name);
    return !stated.empty() || home.empty() ? stated : join_path(home, std::string(".aws/") + file);
  };
  add_profiles(read_settings(path("AWS_CONFIG_FILE", "config")), true, *profiles_);
  add_profiles(read_settings(path("AWS_SHARED_CREDENTIALS_FILE", "credentials")), false, *profiles_);
  return *profiles_;
}

std::optional<Credentials> CredentialsChain::find() {
  if (auto found = from_environment()) return found;
  const std::string token_file = variable("AWS_WEB_IDENTITY_TOKEN_FILE"), role = variable("AWS_ROLE_ARN");
  if (!token_file.empty() && !role.empty()) return from_web_identity(token_file, role);
  const std::string profile = profile_name();
  if (profiles().contains(profile)) {
    if (auto found = from_profile(profile, 0)) return found;
  } else if (profile != "default") {
    throw bad_setting(fmt::format("there is no profile '{}' in the files of AWS", profile))
        .hint("check AWS_PROFILE, or AWS_SHARED_CREDENTIALS_FILE and AWS_CONFIG_FILE");
  }
  if (auto found = from_container()) return found;
  return from_instance();
}

std::optional<Credentials> CredentialsChain::from_environment() const {
  Credentials found{variable("AWS_ACCESS_KEY_ID"), variable("AWS_SECRET_ACCESS_KEY"), variable("AWS_SESSION_TOKEN")};
  if (found.key_id.empty() != found.secret.empty()) {
    throw bad_setting(
        fmt::format("{} is not set", found.secret.empty() ? "AWS_SECRET_ACCESS_KEY" : "AWS_ACCESS_KEY_ID"))
        .because("AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY belong together");
  }
  if (found.key_id.empty()) return std::nullopt;
  return found;
}

Service CredentialsChain::token_service() {
  if (const std::optional<Service> stated = own_endpoint("sts")) return *stated;
  const std::string region = own_region();
  return {region.empty() ? "https://sts.amazonaws.com"
                         : fmt::format("https://sts.{}.{}", region, amazon_domain(region))};
}

HttpRequest CredentialsChain::token_request() {
  const Service service = token_service();
  HttpRequest request;
  request.origin = service.origin;
  request.target = service.base + "/";
  return request;
}

std::optional<Credentials> CredentialsChain::from_web_identity(const std::string& token_file, const std::string& role) {
  const std::string token(trimmed(read_settings(token_file)));
  if (token.empty()) {
    throw Error(ErrorCode::kNotFound, "cannot read the token of the web identity")
        .in_file(token_file)
        .hint("check AWS_WEB_IDENTITY_TOKEN_FILE");
  }
  const std::string session = variable("AWS_ROLE_SESSION_NAME");
  const HttpAnswer answer = transport_.send([&] {
    HttpRequest request = token_request();
    request.method = "POST";
    request.headers["content-type"] = "application/x-www-form-urlencoded";
    request.body = query_text({{"Action", "AssumeRoleWithWebIdentity"},
                               {"RoleArn", role},
                               {"RoleSessionName", session.empty() ? "shardctl" : session},
                               {"Version", "2011-06-15"},
                               {"WebIdentityToken", token}});
    return request;
  });
  if (auto found = answer.is_ok() ? parse_sts_credentials(answer.body) : std::nullopt) return found;
  throw no_role(role, answer);
}

/// \param query  RoleArn and other settings of the role
Credentials CredentialsChain::assume_role(const Credentials& source, Query query) {
  query.insert({{"Action", "AssumeRole"}, {"RoleSessionName", "shardctl"}, {"Version", "2011-06-15"}});
  const HttpAnswer answer = transport_.send([&] {
    HttpRequest request = token_request();
    request.query = query;
    request.headers["host"] = authority_of(request.origin);
    const std::time_t now = std::time(nullptr);
    request.headers["x-amz-date"] = signing_date(now);
    if (!source.token.empty()) request.headers["x-amz-security-token"] = source.token;
    const std::string region = own_region();
    request.headers["authorization"] =
        authorization(source, {request.method, request.target, request.query, request.headers, kEmptyHash},
                      {.region = region.empty() ? "us-east-1" : region, .service = "sts", .time = now});
    return request;
  });
  if (auto found = answer.is_ok() ? parse_sts_credentials(answer.body) : std::nullopt) return *found;
  throw no_role(query["RoleArn"], answer);
}

/// The credentials with which a role is assumed, if they are not those of a profile.
std::optional<Credentials> CredentialsChain::from_source(const std::string& source) {
  if (source == "Environment") return from_environment();
  if (source == "EcsContainer") return from_container();
  if (source == "Ec2InstanceMetadata") return from_instance();
  throw bad_setting(fmt::format("the credential_source '{}' is unknown", source))
      .expected("Environment, EcsContainer or Ec2InstanceMetadata");
}

std::optional<Credentials> CredentialsChain::from_profile(const std::string& name, int depth) {
  const auto profile = profiles().find(name);
  if (profile == profiles().end() || depth == kMostProfiles) {
    throw bad_setting(fmt::format("profile '{}' is missing, or profiles name each other in a circle", name))
        .because("another profile names it as source_profile");
  }
  const auto setting = [&](const char* key) { return setting_of(profile->second, key); };
  const std::string role = setting("role_arn"), source = setting("source_profile"), kind = setting("credential_source");
  if (!role.empty() && (!source.empty() || !kind.empty())) {
    const bool is_own = source == name && keys_of(profile->second);  // The profile has both its keys and its role.
    const std::optional<Credentials> of_source = source.empty() ? from_source(kind)
                                                 : is_own       ? keys_of(profile->second)
                                                                : from_profile(source, depth + 1);
    if (!of_source) {
      throw Error(ErrorCode::kNotFound, fmt::format("cannot assume the role of profile '{}'", name))
          .because(fmt::format("{} has no credentials", source.empty() ? kind : fmt::format("profile '{}'", source)));
    }
    Query query{{"RoleArn", role}};
    if (std::string id = setting("external_id"); !id.empty()) query["ExternalId"] = std::move(id);
    if (std::string session = setting("role_session_name"); !session.empty())
      query["RoleSessionName"] = std::move(session);
    return assume_role(*of_source, std::move(query));
  }
  if (const std::string token = setting("web_identity_token_file"); !role.empty() && !token.empty()) {
    return from_web_identity(token, role);
  }
  if (auto keys = keys_of(profile->second)) return keys;
  if (const std::string command = setting("credential_process"); !command.empty()) {
    if (auto found = parse_credentials(output_of(command))) return found;
    throw Error(ErrorCode::kNotFound,
                fmt::format("the credential_process of profile '{}' printed no credentials", name))
        .expected("a JSON document with AccessKeyId and SecretAccessKey");
  }
  if (!setting("sso_session").empty() || !setting("sso_start_url").empty()) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot use single sign-on of profile '{}'", name))
        .hint("run 'aws configure export-credentials --profile NAME --format env', or set credential_process");
  }
  return std::nullopt;
}

std::optional<Credentials> CredentialsChain::from_container() {
  const std::string relative = variable("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
  const std::string full = variable("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (relative.empty() && full.empty()) return std::nullopt;
  const std::string address = relative.empty() ? full : kContainerOrigin + relative;
  HttpRequest request = request_to(address, "AWS_CONTAINER_CREDENTIALS_FULL_URI");
  const std::string_view authority = authority_of(request.origin);
  const std::string_view host = authority.substr(0, authority.find(':', authority.rfind(']') + 1));
  const bool is_local = is_loopback(authority) || std::ranges::find(kContainerHosts, host) != kContainerHosts.end();
  if (request.origin.starts_with("http:") && !is_local) {
    throw bad_setting("AWS_CONTAINER_CREDENTIALS_FULL_URI leads to a different machine without HTTPS");
  }
  std::string token = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file = variable("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE"); !file.empty()) {
    token = trimmed(read_settings(file));
  }
  if (!token.empty()) request.headers["authorization"] = token;
  const HttpAnswer answer = transport_.send_once(request, local_limits());
  if (auto found = answer.is_ok() ? parse_credentials(answer.body) : std::nullopt) return found;
  throw Error(ErrorCode::kNotFound, "the container's service returned no credentials")
      .because(answer.failure.empty() ? fmt::format("HTTP {}", answer.status) : answer.failure);
}

std::optional<Credentials> CredentialsChain::from_instance() {
  if (const std::string off = variable("AWS_EC2_METADATA_DISABLED"); off == "true" || off == "TRUE")
    return std::nullopt;
  const std::string stated = variable("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  const std::string origin = stated.empty() ? kInstanceOrigin : origin_of(stated, "AWS_EC2_METADATA_SERVICE_ENDPOINT");
  HttpRequest request;
  request.method = "PUT";
  request.origin = origin;
  request.target = "/latest/api/token";
  request.headers["x-aws-ec2-metadata-token-ttl-seconds"] = "21600";
  request.uses_proxy = false;
  const HttpAnswer token = transport_.send_once(request, local_limits());
  if (!token.is_ok()) return std::nullopt;
  request.method = "GET";
  request.headers = {{"x-aws-ec2-metadata-token", token.body}};
  request.target = "/latest/meta-data/iam/security-credentials/";
  const HttpAnswer role = transport_.send_once(request, local_limits());
  if (!role.is_ok()) return std::nullopt;
  request.target += percent_encode(trimmed(std::string_view(role.body).substr(0, role.body.find('\n'))), false);
  const HttpAnswer answer = transport_.send_once(request, local_limits());
  return answer.is_ok() ? parse_credentials(answer.body) : std::nullopt;
}

}  // namespace shard::stores
