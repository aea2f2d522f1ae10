#include "libshard/stores/object_part.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "libshard/core/error.h"
#include "libshard/core/short_text.h"
#include "libshard/ranks/wire.h"
#include "libshard/stores/c_store.h"
#include "libshard/stores/upload_note.h"

namespace shard {

namespace {

class KeptFile final : public FileWriter {
 public:
  KeptFile(std::vector<std::byte>& bytes, const OutputFile& file) : bytes_(bytes), file_(file) {}
  void write_at(std::int64_t offset_bytes, std::span<const std::byte> data) override {
    if (offset_bytes < 0 || offset_bytes > std::ssize(bytes_) - std::ssize(data)) {
      throw Error(ErrorCode::kResource, "a write leads past the end of the object").in_file(file_.path);
    }
    std::ranges::copy(data, bytes_.begin() + offset_bytes);
  }
  void read_back(std::int64_t offset_bytes, std::span<std::byte> out) override {
    if (offset_bytes < 0 || offset_bytes > std::ssize(bytes_) - std::ssize(out)) throw cannot_read_back();
    std::copy_n(bytes_.begin() + offset_bytes, out.size(), out.begin());
  }
  void allocate(std::int64_t) override {}
  void sync() override {}
  void close() override {}

  void pass_blocks() {
    for (std::int64_t at = 0; file_.on_block && !is_passed_ && at < std::ssize(bytes_); at += kOutputBlock) {
      const auto count = static_cast<std::size_t>(std::min(kOutputBlock, std::ssize(bytes_) - at));
      file_.on_block(at / kOutputBlock, std::span(bytes_).subspan(static_cast<std::size_t>(at), count));
    }
    is_passed_ = true;
  }

 private:
  std::vector<std::byte>& bytes_;
  const OutputFile file_;
  bool is_passed_ = false;
};

std::vector<std::byte> to_receipt(const PartsByUrl& parts) {
  WireWriter out;
  for (const auto& [url, all] : parts) {
    out.text(url);
    pass_parts(out, all);
  }
  return out.take();
}

class ObjectPart final : public OutputPart {
 public:
  ObjectPart(const ObjectStore& store, std::string destination, OutputToken token, std::shared_ptr<KeptFiles> kept,
             const UploadLimits& limits, std::function<void(const std::string& text)> says)
      : store_(store),
        destination_(std::move(destination)),
        token_(std::move(token)),
        kept_(std::move(kept)),
        says_(std::move(says)),
        parts_(store, limits) {
    auto note = parse_upload_note(token_.note);
    if (!note) throw Error(ErrorCode::kPeer, "cannot find the output of a different rank: it has no uploads");
    note_ = *std::move(note);
  }

  FileWriter& create(const OutputFile& file) override {
    const std::string end = end_of_url(file, token_.is_folder);
    const auto noted = std::ranges::find(note_.files, end, &UploadNote::File::path);
    if (noted == note_.files.end() || noted->bytes != file.bytes) {
      throw Error(ErrorCode::kInternal, "a file was not declared when the output was begun")
          .in_file(destination_ + end);
    }
    const auto completed = token_.completed.find(end);
    if (noted->upload.empty() && completed == token_.completed.end()) return keep(file, end);
    UploadTarget target{.url = destination_ + end,
                        .upload = noted->upload,
                        .bytes = file.bytes,
                        .part_bytes = noted->part_bytes,
                        .share = file.share,
                        .has_checksums = noted->has_checksums};
    if (completed != token_.completed.end()) {
      target.completed = completed->second;
    } else if (token_.is_continued) {
      target.stored = store_.ask({.act = ObjectAct::kParts, .url = target.url, .upload = target.upload}).parts;
    }
    return parts_.add(std::move(target), file.on_block);
  }

  FileWriter& open(const std::string& path) override {
    throw Error(ErrorCode::kInternal, "only one rank can write to an object").in_file(path);
  }

  void pass_blocks() override {
    for (const auto& each : kept_writers_) each->pass_blocks();
    parts_.finish(true);
  }

  void finish() override {
    for (const auto& each : kept_writers_) each->pass_blocks();
    parts_.finish(false);
    if (token_.is_continued && says_) {
      says_(fmt::format("kept {} of the interrupted run", plural(parts_.kept_parts(), "part")));
    }
  }

  std::vector<std::byte> receipt() const override { return to_receipt(parts_.stored()); }

 private:
  FileWriter& keep(const OutputFile& file, const std::string& end) {
    const std::scoped_lock lock(kept_->mutex);
    std::vector<std::byte>& bytes = kept_->content[end];
    bytes.assign(static_cast<std::size_t>(file.bytes), std::byte{});
    kept_writers_.push_back(std::make_unique<KeptFile>(bytes, file));
    return *kept_writers_.back();
  }

  const ObjectStore& store_;
  const std::string destination_;
  const OutputToken token_;
  const std::shared_ptr<KeptFiles> kept_;
  const std::function<void(const std::string& text)> says_;
  UploadNote note_;
  std::vector<std::unique_ptr<KeptFile>> kept_writers_;
  UploadParts parts_;
};

}  // namespace

std::string end_of_url(const OutputFile& file, bool is_folder) {
  if (is_folder) return "/" + file.path;
  return file.is_beside ? file.path : std::string();
}

std::vector<std::byte> OutputToken::bytes() const {
  WireWriter out;
  out.text(note);
  out.number(is_folder ? 1 : 0);
  out.number(is_continued ? 1 : 0);
  for (const auto& [end, etag] : completed) {
    out.text(end);
    out.text(etag);
  }
  return out.take();
}

OutputToken OutputToken::of_bytes(std::span<const std::byte> bytes) {
  WireReader in(bytes);
  OutputToken token;
  token.note = in.text();
  token.is_folder = in.number() != 0;
  token.is_continued = in.number() != 0;
  while (!in.at_end()) {
    const std::string end = in.text();
    token.completed[end] = in.text();
  }
  return token;
}

PartsByUrl parts_of_receipt(std::span<const std::byte> bytes) {
  PartsByUrl parts;
  for (WireReader in(bytes); !in.at_end();) {
    const std::string url = in.text();
    pass_parts(in, parts[url]);
  }
  return parts;
}

std::unique_ptr<OutputPart> object_part(const ObjectStore& store, std::string destination, OutputToken token,
                                        std::shared_ptr<KeptFiles> kept, const UploadLimits& limits,
                                        std::function<void(const std::string& text)> says) {
  return std::make_unique<ObjectPart>(store, std::move(destination), std::move(token), std::move(kept), limits,
                                      std::move(says));
}

}  // namespace shard
