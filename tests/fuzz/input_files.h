/// \file
/// A file system with a few read-only files under /in. It does no bookkeeping, because fuzzing creates millions of
/// them.
#pragma once

#include <algorithm>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "libshard/core/error.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"

namespace shard::fuzz {

/// Bytes, followed by zeros up to a size: data files of any size cost no memory.
struct Content {
  std::string bytes;
  std::int64_t size = 0;
};

class InputFile final : public RandomReader {
 public:
  InputFile(const Content& content, const std::string& name) : content_(content) { name_ = name; }

  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const auto count = static_cast<std::int64_t>(out.size());
    if (offset_bytes < 0 || offset_bytes > content_.size || count > content_.size - offset_bytes) {
      throw Error(ErrorCode::kCorruption, "the file ends before").in_file(name_).of_kind(FindingKind::kTruncated);
    }
    const auto stored = static_cast<std::int64_t>(content_.bytes.size());
    const std::int64_t copied = std::clamp<std::int64_t>(stored - offset_bytes, 0, count);
    if (copied > 0) std::memcpy(out.data(), content_.bytes.data() + offset_bytes, static_cast<std::size_t>(copied));
    std::ranges::fill(out.subspan(static_cast<std::size_t>(copied)), std::byte{0});
  }
  std::int64_t size() const override { return content_.size; }
  /// The zeros after the bytes are a hole.
  std::int64_t allocated_bytes(std::int64_t offset_bytes, std::int64_t count) const override {
    return std::clamp<std::int64_t>(std::ssize(content_.bytes) - offset_bytes, 0, count);
  }

 private:
  const Content& content_;
};

class InputFiles final : public LocalDisk {
 public:
  void put(const std::string& name, std::string bytes, std::int64_t zeros = 0) {
    const auto size = static_cast<std::int64_t>(bytes.size()) + zeros;
    files_["/in/" + name] = {std::move(bytes), size};
  }

  /// The content of all files.
  std::int64_t held_bytes() const {
    std::int64_t bytes = 0;
    for (const auto& [path, content] : files_) bytes += std::ssize(content.bytes);
    return bytes;
  }

  /// Whether files are inside it.
  bool is_folder(const std::string& path) const {
    const auto next = files_.lower_bound(path + "/");
    return next != files_.end() && next->first.starts_with(path + "/");
  }

  FileStatus status(const std::string& path) const override {
    if (path == "/in" || is_folder(path)) return {FileKind::kFolder, 0, 1, 1};
    const auto found = files_.find(path);
    if (found == files_.end()) return {};
    const auto inode = static_cast<std::uint64_t>(std::distance(files_.begin(), found)) + 2;
    return {FileKind::kFile, found->second.size, 1, inode};
  }
  std::vector<std::string> list(const std::string& folder) const override {
    if (folder != "/in" && !is_folder(folder)) absent(folder);
    std::vector<std::string> names;
    for (const auto& [path, content] : files_) {
      if (!path.starts_with(folder + "/")) continue;
      const std::string below = path.substr(folder.size() + 1);
      const std::string name = below.substr(0, below.find('/'));
      if (names.empty() || names.back() != name) names.push_back(name);
    }
    return names;
  }
  std::unique_ptr<RandomReader> open(const std::string& path) const override {
    const auto found = files_.find(path);
    if (found == files_.end()) absent(path);
    return std::make_unique<InputFile>(found->second, path);
  }
  std::unique_ptr<RandomReader> open_below(const std::string& folder, const std::string& relative) const override {
    return open(folder + "/" + relative);
  }

  std::unique_ptr<LocalFolder> open_folder(const std::string& path) override { read_only(path); }
  std::string resolved(const std::string& path) const override { return path; }
  bool clone_range(const RandomReader& from, std::int64_t, FileWriter&, std::int64_t, std::int64_t) override {
    read_only(from.name());
  }

 private:
  [[noreturn]] static void absent(const std::string& path) {
    throw Error(ErrorCode::kNotFound, "no such file").in_file(path).of_kind(FindingKind::kMissingFile);
  }
  [[noreturn]] static void read_only(const std::string& path) {
    throw Error(ErrorCode::kResource, "read only").in_file(path);
  }

  std::map<std::string, Content> files_;
};

}  // namespace shard::fuzz
