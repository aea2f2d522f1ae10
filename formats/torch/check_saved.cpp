#include "formats/torch/check_saved.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "formats/parts/decoded_view/decoded_view.h"
#include "formats/parts/pickle/opcodes.h"
#include "formats/parts/pickle/pickle.h"
#include "formats/parts/zip/zip_check.h"
#include "formats/torch/legacy_file.h"
#include "libshard/core/digest.h"
#include "libshard/core/error.h"
#include "libshard/io/open_files.h"
#include "libshard/io/paths.h"

namespace shard::torch_save {

namespace {

constexpr std::int64_t kSmall = 4096;
constexpr int kLegacyPickles = 5;  ///< Magic number, protocol, machine, object, keys.

bool is_pickle(std::string_view record) { return record.ends_with(".pkl"); }

/// Passes on a record that is not read at once.
void hand_over(const ZipPlace& place, const zip::ZipReader& zip, const zip::Record& record, std::int64_t data,
               ContainerReport& report) {
  CrcRange run{.offset = data, .bytes = record.bytes, .name = fmt::format("record '{}'", record.name)};
  if (zip.has_checksums()) run.crc32 = record.checksum();
  run.decoded = place.decoded;
  if (record.method == zip::kDeflated) {
    run.offset = 0;
    run.decoded = [place, data, record] {
      return decoded_view::decompressed({.file = place.decoded ? place.decoded() : place.file,
                                         .offset = data,
                                         .stored_bytes = record.stored_bytes,
                                         .bytes = record.bytes,
                                         .codec = decoded_view::Codec::kDeflate,
                                         .shown = record.name});
    };
  } else if (record.method != 0) {
    throw Error(
        ErrorCode::kUnsupported,
        fmt::format("record '{}' has compression method {}, which this build cannot read", record.name, record.method));
  }
  report.on_crc_run(std::move(run));
}

}  // namespace

void GlobalLister::list(std::span<const std::byte> pickle) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  hasher.update(pickle);
  if (!seen_.insert(hasher.finish_hex())) return;
  Arena arena(std::make_shared<Budget>());
  arena.earn(static_cast<std::int64_t>(pickle.size()));
  pickle::LoadOptions options;
  options.allow = [this](std::string_view module, std::string_view name) {
    report_.on_global(fmt::format("{}.{}", module, name));
    return true;
  };
  try {
    pickle::load(arena, pickle, options);
  } catch (const Error&) {
  }
}

void check_saved_zip(const ZipPlace& place, GlobalLister& globals, ContainerReport& report) {
  zip::check_zip(place.view != nullptr ? place.view : place.file, place.begin, place.bytes, report.findings(),
                 [&](const zip::ZipReader& zip, const zip::Record& record, std::int64_t data) {
                   const bool is_read = is_pickle(record.name) || record.bytes <= kSmall;
                   if (!is_read) return hand_over(place, zip, record, data, report);
                   Arena arena(std::make_shared<Budget>());  // Limits the inflated size of a pickle.
                   arena.earn(zip.allocated_bytes(record));
                   std::vector<std::byte> content;
                   try {
                     content = zip.read(record, arena);
                   } catch (const Error& error) {
                     const bool is_of_tensor = zip.has_checksums() && !is_pickle(record.name);
                     if (error.kind() != FindingKind::kCrcMismatch || !is_of_tensor) throw;
                     return hand_over(place, zip, record, data, report);  // The receiver knows the tensor.
                   }
                   if (zip.has_checksums() && record.checksum()) report.on_crcs_checked(1);
                   if (is_pickle(record.name)) globals.list(content);
                 });
}

void check_saved_file(const std::shared_ptr<const RandomReader>& file, ContainerReport& report) {
  GlobalLister globals(report);
  if (!is_legacy_file(*file)) return check_saved_zip({file, 0, file->size()}, globals, report);
  try {
    std::int64_t at = 0;
    for (int i = 0; i < kLegacyPickles; ++i) {
      const std::int64_t bytes = pickle::scan(*file, at);
      std::vector<std::byte> pickle(static_cast<std::size_t>(bytes));
      file->read_at(at, pickle);
      globals.list(pickle);
      at += bytes;
    }
  } catch (const Error&) {  // The function that opened the file has reported it.
  }
}

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
  constexpr int kDepth = 3;  // global_step2/zero/NAME/fp32.pt
  std::vector<std::pair<std::string, std::string>> files;
  for (const std::string& path : paths) {
    const bool is_folder = store.is_folder(path);
    list_files(store, path, is_folder ? std::string() : base_name(path), is_folder ? kDepth : 0, files);
  }
  if (files.size() < 2) return nullptr;  // The only file is the one that could not be opened.
  // Items of dcp are consecutive zips, whose borders only their metadata records.
  if (std::ranges::any_of(files, [](const auto& each) { return each.second.ends_with(".distcp"); })) return nullptr;
  auto reader = std::make_unique<LooseFiles>(store, std::move(files));
  return reader->empty() ? nullptr : std::move(reader);
}

}  // namespace shard::torch_save
