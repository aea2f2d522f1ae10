// Models on the Hugging Face Hub, and on servers with its interface. Source: huggingface_hub 2.4.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <fstream>

#include "libshard/core/ascii.h"
#include "libshard/io/paths.h"
#include "libshard/stores/remote/headers.h"
#include "libshard/stores/remote/json_answer.h"
#include "libshard/stores/remote/listing.h"
#include "libshard/stores/remote/place.h"

namespace shard::stores {

namespace {

constexpr const char* kHubOrigin = "https://huggingface.co";
constexpr std::size_t kMostToken = 4096;

bool is_true(const std::string& value) {
  constexpr std::array<std::string_view, 8> kWords{"1", "ON", "YES", "TRUE", "on", "yes", "true", "True"};
  return std::ranges::find(kWords, value) != kWords.end();
}

std::string first_line(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  line.resize(std::min(line.find_last_not_of(" \t\r") + 1, kMostToken));
  return line;
}

/// The token of the environment, or of the file in which the hub's client keeps it; empty if there is none.
std::string find_token(const Environment& environment) {
  for (const char* const name : {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}) {
    if (std::string token = environment(name); !token.empty()) return token;
  }
  if (is_true(environment("HF_HUB_DISABLE_IMPLICIT_TOKEN"))) return {};
  if (const std::string path = environment("HF_TOKEN_PATH"); !path.empty()) return first_line(path);
  std::string home = environment("HF_HOME");
  if (home.empty()) {
    const std::string cache = environment("XDG_CACHE_HOME"), own = environment("HOME");
    if (cache.empty() && own.empty()) return {};
    home = join_path(cache.empty() ? join_path(own, ".cache") : cache, "huggingface");
  }
  return first_line(join_path(home, "token"));
}

bool is_commit(std::string_view text) {
  return text.size() == 40 && text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

class Hub final : public Place {
 public:
  Hub(Transport& transport, const std::string& root, Service service, std::string repository, std::string revision,
      std::string token)
      : Place(transport, root),
        service_(std::move(service)),
        repository_(std::move(repository)),
        revision_(std::move(revision)),
        token_(std::move(token)) {}

  bool can_list() const override { return true; }
  bool lists_whole() const override { return true; }

  Listing list(const std::string& prefix, bool) override {
    resolve_revision();
    ListingPages pages(prefix);
    HttpRequest page = request_to(fmt::format("/api/models/{}/tree/{}", repository_, commit_));
    page.query["recursive"] = "true";
    for (;;) {
      const HttpAnswer answer = ask([&] { return page; }, root());
      try {
        pages.add_hub_page(answer.body);
      } catch (Error& error) {
        throw error.in_file(root());
      }
      const std::string next = next_page(answer.header("link"));
      if (next.empty()) return pages.take();
      const bool is_own = next.starts_with(service_.origin + "/");
      if (!is_own && !next.starts_with('/')) {
        throw Error(ErrorCode::kCorruption, "cannot use the server's list of files")
            .in_file(root())
            .because("its next page is on a different server");
      }
      page.target = is_own ? next.substr(service_.origin.size()) : next;
      page.query.clear();
    }
  }

 protected:
  HttpRequest request_of(const std::string& key) override {
    return request_to(fmt::format("/{}/resolve/{}/{}", repository_, commit_, percent_encode(key, true)));
  }
  /// The base class calls it only for requests to the hub itself, not to the servers to which the hub redirects.
  void authorize(HttpRequest& request) override {
    if (!token_.empty()) request.headers["authorization"] = "Bearer " + token_;
  }
  bool mend(const HttpAnswer&) override { return false; }
  bool follows_redirects() const override { return true; }
  std::string error_code(const HttpAnswer& answer) const override {
    const std::string& code = answer.header("x-error-code");
    return std::ranges::all_of(code, is_letter) ? code : std::string();
  }
  void explain(const HttpAnswer& answer, const std::string& code, Error& error) const override {
    if (answer.status != 401 && answer.status != 403 && answer.status != 404) return;
    if (code == "RevisionNotFound") {
      error.because(fmt::format("the model has no revision '{}'", revision_)).hint("check the name after '@'");
    } else if (code == "GatedRepo") {
      error.hint("accept the model's conditions on the hub, and set HF_TOKEN to a token that may read it");
    } else {
      error.hint(token_.empty() ? "check the name; for a private or gated model set HF_TOKEN, or run 'hf auth login'"
                                : "check the name, and that the token may read the model");
    }
  }

 private:
  HttpRequest request_to(const std::string& path) const {
    HttpRequest request;
    request.origin = service_.origin;
    request.target = service_.base + path;
    return request;
  }

  /// Finds the commit of the revision once, so that all requests are about the same files.
  void resolve_revision() {
    if (!commit_.empty()) return;
    const HttpRequest request =
        request_to(fmt::format("/api/models/{}/revision/{}", repository_, percent_encode(revision_, false)));
    const HttpAnswer answer = ask([&] { return request; }, root());
    commit_ = text_in(parse_answer(answer.body), "sha");
    if (is_commit(commit_)) return;
    commit_.clear();
    throw Error(ErrorCode::kCorruption, "the hub does not name the commit of the revision")
        .in_file(root())
        .expected("a JSON document with 'sha'");
  }

  const Service service_;
  const std::string repository_, revision_, token_;
  std::string commit_;  ///< Set before the first listing returns.
};

}  // namespace

std::unique_ptr<Place> open_hub(Transport& transport, const StoreRequest& request, const Environment& environment,
                                const std::string& repository, const std::string& revision) {
  const std::string root = fmt::format("hf://{}{}", repository, revision.empty() ? std::string() : "@" + revision);
  const std::size_t slash = repository.find('/');
  const std::string_view organization = std::string_view(repository).substr(0, slash);
  if (slash == std::string::npos || slash + 1 == repository.size() || !is_alphanumeric(repository, "-_./")) {
    throw Error(ErrorCode::kInvalidArgument, "cannot use the URL: it does not name a model")
        .in_file(root)
        .expected("hf://ORG/NAME, optionally with @REVISION and a path");
  }
  if (organization == "datasets" || organization == "spaces" || organization == "buckets") {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot read {} of the hub", organization))
        .in_file(root)
        .because("only models are supported");
  }
  if (is_true(environment("HF_HUB_OFFLINE"))) {
    throw Error(ErrorCode::kNotFound, "cannot read from the hub: HF_HUB_OFFLINE is set")
        .in_file(root)
        .hint("unset HF_HUB_OFFLINE, or name the folder of a downloaded model");
  }
  const std::string endpoint = environment("HF_ENDPOINT");
  return std::make_unique<Hub>(transport, root, service_of(endpoint.empty() ? kHubOrigin : endpoint, "HF_ENDPOINT"),
                               repository, revision.empty() ? "main" : percent_decode(revision),
                               request.is_anonymous ? std::string() : find_token(environment));
}

}  // namespace shard::stores
