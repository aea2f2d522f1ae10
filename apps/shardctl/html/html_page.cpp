#include "apps/shardctl/html/html_page.h"

#include <fmt/format.h>
#include <openssl/evp.h>

#include <array>
#include <exception>
#include <ostream>
#include <span>
#include <streambuf>
#include <string_view>
#include <vector>

#include "apps/shardctl/render/report.h"
#include "apps/shardctl/session/ranks.h"
#include "apps/shardctl/text/units.h"
#include "formats/export/model_folder.h"
#include "libshard/core/error.h"
#include "libshard/io/local_output.h"
#include "libshard/io/paths.h"

namespace shard::app {

// Parts that all pages share: the files in this folder, which cmake/embed_page.cmake embeds.

/// page.html. It contains the placeholders `@policy@`, `@style@`, `@document@` and `@script@` once each, in this order.
extern const std::string_view kPageFrame;
extern const std::string_view kPageStyle;   ///< page.css
extern const std::string_view kPageScript;  ///< The scripts, concatenated.

namespace {

/// Counts the bytes of a stream and writes them if there is a file. Keeps the first exception, which streams swallow.
class FileBuffer final : public std::streambuf {
 public:
  explicit FileBuffer(FileWriter* file) : file_(file) {}
  /// The bytes so far. \throws Error kResource  a write failed
  std::int64_t checked_bytes() const {
    if (failure_) std::rethrow_exception(failure_);
    return bytes_;
  }

 protected:
  int_type overflow(int_type c) override {
    const char byte = traits_type::to_char_type(c);
    return xsputn(&byte, 1) == 1 ? c : traits_type::eof();
  }
  std::streamsize xsputn(const char* data, std::streamsize count) override try {
    if (file_ != nullptr) file_->write_at(bytes_, std::as_bytes(std::span(data, static_cast<std::size_t>(count))));
    bytes_ += count;
    return count;
  } catch (...) {
    if (!failure_) failure_ = std::current_exception();
    return 0;
  }

 private:
  FileWriter* const file_;
  std::int64_t bytes_ = 0;
  std::exception_ptr failure_;
};

/// A content security policy source that allows only this text.
std::string hash_source(std::string_view text) {
  std::array<unsigned char, 32> digest{};
  std::array<unsigned char, 45> base64{};  // Includes the terminating zero.
  if (EVP_Digest(text.data(), text.size(), digest.data(), nullptr, EVP_sha256(), nullptr) != 1) {
    throw Error(ErrorCode::kResource, "cannot hash the page");
  }
  EVP_EncodeBlock(base64.data(), digest.data(), static_cast<int>(digest.size()));
  return fmt::format("'sha256-{}'", reinterpret_cast<const char*>(base64.data()));
}

/// The page's security policy. It loads nothing, sends nothing, runs only our script, and turns no text into markup,
/// regardless of the document's content.
std::string policy() {
  return fmt::format(
      "default-src 'none'; style-src {}; script-src {}; base-uri 'none'; form-action 'none'; "
      "require-trusted-types-for 'script'; trusted-types 'none'",
      hash_source(kPageStyle), hash_source(kPageScript));
}

/// Writes the page with all placeholders filled. \returns the bytes of the page. \throws Error kResource
std::int64_t write_page(FileWriter* file, const std::function<void(JsonWriter&)>& render) {
  FileBuffer buffer(file);
  std::ostream out(&buffer);
  std::string_view rest = kPageFrame;
  const auto frame_before = [&](std::string_view mark) {
    const std::size_t end = rest.find(mark);
    out << rest.substr(0, end);
    rest.remove_prefix(end + mark.size());
  };
  frame_before("@policy@");
  out << policy();
  frame_before("@style@");
  out << kPageStyle;
  frame_before("@document@");
  {
    JsonWriter json(out, {JsonEscapes::kInHtml});
    render(json);
  }
  frame_before("@script@");
  out << kPageScript << rest;
  return buffer.checked_bytes();
}

}  // namespace

HtmlPage::HtmlPage(const Session& session, const PageRequest& page, const ReadRequest& read)
    : session_(session), path_(page.path) {
  if (path_.empty() || !is_rank_zero(session)) return;
  if (session.fs.is_folder(path_)) {
    throw Error(ErrorCode::kExists, "cannot write the page: a folder with this name exists").in_file(path_);
  }
  std::vector<std::string> sources = read.paths;
  sources.insert(sources.end(), read.named_inputs.begin(), read.named_inputs.end());
  const std::string& reference = read.numbers.hf_ref;
  if (!reference.empty()) sources.push_back(join_path(reference, kConfigName));
  store_ = local_output(session.fs, path_, sources, {.force = page.force});
}

void HtmlPage::write(const std::function<void(JsonWriter&)>& render) const try {
  if (!is_wanted()) return;
  const OutputFile file{.path = base_name(path_), .bytes = write_page(nullptr, render)};
  const std::unique_ptr<Output> output = store_->begin(std::span(&file, 1), false);
  const std::unique_ptr<OutputPart> part = store_->part(output->token());
  write_page(&part->create(file), render);
  part->finish();
  if (session_.stop.stop_requested()) throw Error(ErrorCode::kInterrupted, "interrupted");
  output->commit();
  note(session_, fmt::format("wrote {} ({})", path_, human_bytes(file.bytes)));
} catch (const Error& error) {
  throw of_destination(error, path_);
}

void allow_sudden_end(const Session& session, const PageRequest& page) {
  if (session.end_at_once && page.path.empty()) session.end_at_once();
}

}  // namespace shard::app
