#include "formats/torch/loose_files.h"

#include <algorithm>
#include <array>
#include <utility>

#include "formats/torch/check_saved.h"
#include "formats/torch/legacy_file.h"
#include "libshard/io/open_files.h"
#include "libshard/io/paths.h"

namespace shard::torch_save {

namespace {

constexpr std::size_t kMostFiles = 10'000;

/// Adds the files of `path`, which messages call `shown`, and of folders up to `depth` levels below.
void list_files(const SourceStore& store, const std::string& path, const std::string& shown, int depth,
                std::vector<std::pair<std::string, std::string>>& files) {
  const FileKind kind = store.status(path).kind;
  if (kind == FileKind::kFile && files.size() < kMostFiles) files.emplace_back(path, shown);
  if (kind != FileKind::kFolder || depth < 0) return;
  for (const std::string& name : store.list(path)) {
    if (name.starts_with('.')) continue;
    list_files(store, join_path(path, name), shown.empty() ? name : join_path(shown, name), depth - 1, files);
  }
}

bool is_saved(const RandomReader& file) {
  std::array<std::byte, 4> head{};
  if (file.size() < std::ssize(head)) return false;
  file.read_at(0, head);
  constexpr std::array kZip{std::byte{'P'}, std::byte{'K'}, std::byte{3}, std::byte{4}};
  return head == kZip || is_legacy_file(file);
}

class LooseFiles final : public Reader {
 public:
  LooseFiles(const SourceStore& store, std::vector<std::pair<std::string, std::string>> files)
      : store_(store), opened_([this](std::uint32_t index) { return store_.open(paths_[index]); }) {
    for (auto& [path, shown] : files) {
      try {
        const std::unique_ptr<RandomReader> file = store.open(path);
        if (!is_saved(*file)) continue;
        catalog_.files.push_back({shown, file->size(), -1, file->identity()});
        paths_.push_back(std::move(path));
      } catch (const Error& error) {
        if (error.code() != ErrorCode::kNotFound && error.code() != ErrorCode::kCorruption) throw;
      }
    }
  }

  bool empty() const { return paths_.empty(); }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return opened_.get(index); }
  bool check_container(std::uint32_t index, ContainerReport& report) const override {
    check_saved_file(file(index), report);
    return true;
  }

 private:
  const SourceStore& store_;
  std::vector<std::string> paths_;  ///< By file.
  mutable OpenFiles opened_;
  Catalog catalog_;
};

}  // namespace

std::unique_ptr<Reader> open_loose_files(const SourceStore& store, const std::vector<std::string>& paths) {
  constexpr int kDepth = 1;
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& path : paths) {
    const bool is_folder = store.status(path).kind == FileKind::kFolder;
    list_files(store, path, is_folder ? std::string() : base_name(path), is_folder ? kDepth : 0, files);
  }
  if (files.size() < 2) return nullptr;  // The only file is the one that could not be opened.
  // Items of dcp are consecutive zips, whose borders only their metadata records.
  if (std::ranges::any_of(files, [](const auto& each) { return each.second.ends_with(".distcp"); })) return nullptr;
  auto reader = std::make_unique<LooseFiles>(store, std::move(files));
  return reader->empty() ? nullptr : std::move(reader);
}

}  // namespace shard::torch_save
