// Files of web servers. They have no listings.
#include <fmt/format.h>

#include "libshard/stores/remote/place.h"

namespace shard::stores {

namespace {

class Web final : public Place {
 public:
  Web(Transport& transport, const std::string& scheme, const std::string& authority)
      : Place(transport, fmt::format("{}://{}", scheme, authority)) {}

  bool can_list() const override { return false; }
  Listing list(const std::string&, bool) override { return {}; }

 protected:
  HttpRequest request_of(const std::string& key) override {
    HttpRequest request;
    request.origin = root();
    request.target = "/" + percent_encode_rest(key);
    return request;
  }
  void authorize(HttpRequest&) override {}
  bool mend(const HttpAnswer&) override { return false; }
  bool follows_redirects() const override { return true; }
  std::string error_code(const HttpAnswer&) const override { return {}; }
  void explain(const HttpAnswer& answer, const std::string&, Error& error) const override {
    if (answer.status == 401 || answer.status == 403) error.hint("shardctl sends no credentials to web servers");
  }
};

}  // namespace

std::unique_ptr<Place> open_web(Transport& transport, const std::string& scheme, const std::string& authority) {
  if (scheme == "http" && !is_loopback(authority)) {
    throw Error(ErrorCode::kUnsupported, "cannot read http:// of other machines")
        .in_file(fmt::format("{}://{}", scheme, authority))
        .because("anyone on the way could change the data")
        .hint("use https://");
  }
  return std::make_unique<Web>(transport, scheme, authority);
}

}  // namespace shard::stores
