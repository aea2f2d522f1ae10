// A plug-in with two formats that nothing else names. A file is the bytes of one uint8 tensor "x", which begin with
// "TOY". If they begin with "TOY2", the file has format toy-two, which supersedes toy and can end its files with a
// mark.
#include <array>
#include <span>
#include <string>
#include <utility>

#include "formats/plugins.h"
#include "libshard/catalog/catalog_builder.h"
#include "libshard/core/error.h"

namespace shard {
namespace {

class ToyReader final : public Reader {
 public:
  ToyReader(const Source& source, std::string_view format) : file_(source.store->open(source.paths.front())) {
    catalog_.format = format;
    catalog_.files.push_back({source.paths.front(), file_->size(), -1});
    catalog_.storages.push_back({.offset = 0, .bytes = file_->size(), .file = 0});
    const std::array<std::int64_t, 1> shape{file_->size()}, strides{1};
    StoredTensor stored;
    stored.shape = catalog_.arena->dims(shape);
    stored.strides = catalog_.arena->dims(strides);
    stored.dtype = DType::kUint8;
    CatalogBuilder(catalog_).add_tensor("x", {}, stored);
    validate_catalog(catalog_);
  }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t) const override { return file_; }

 private:
  std::shared_ptr<const RandomReader> file_;
  Catalog catalog_;
};

class ToyWriter final : public Writer {
 public:
  ToyWriter(std::string name, bool marks) : name_(std::move(name)), marks_(marks) {}
  void place(Catalog& target) override {
    if (target.tensors.size() != 1) throw Error(ErrorCode::kUnsupported, "a toy file holds one tensor");
    target.storages.front().offset = 0;
    target.files.front().path = name_;
    target.files.front().bytes = target.storages.front().bytes + (marks_ ? 1 : 0);
  }
  void begin_file(const Catalog& target, std::uint32_t, FileWriter& to) override {
    if (marks_) to.write_at(target.storages.front().bytes, std::as_bytes(std::span("!", 1)));
  }
  bool is_folder() const override { return false; }

 private:
  std::string name_;
  bool marks_;
};

bool begins_with(const Source& source, std::string_view magic) {
  const std::string& path = source.paths.front();
  if (source.paths.size() != 1 || source.store->status(path).kind != FileKind::kFile) return false;
  std::string head(magic.size(), '\0');
  const auto file = source.store->open(path);
  if (file->size() < std::ssize(magic)) return false;
  file->read_at(0, std::as_writable_bytes(std::span(head)));
  return head == magic;
}

constexpr std::array<std::string_view, 1> kToySuffix{".toy"}, kToyTwoSuffix{".toy2"};

constexpr std::array<std::string_view, 1> kSupersedes{"toy"};
constexpr std::array<std::string_view, 2> kEnds{"bare", "mark"};
constexpr std::array kOptions{
    FormatOption{"toy-end", kEnds, "end of a toy-two file: bare (default) or mark", "toy-two"}};

std::unique_ptr<Writer> make_writer(const WriteOptions& options) {
  return std::make_unique<ToyWriter>(options.base_name, choice(options.choices, kOptions.front()) == "mark");
}

const Format kToy{
    .traits = {.name = "toy"},
    .suffixes = kToySuffix,
    .detect = [](const Source& source) { return begins_with(source, "TOY"); },
    .open = [](const Source& source, const OpenOptions&) -> std::unique_ptr<Reader> {
      return std::make_unique<ToyReader>(source, "toy");
    },
    .make_writer = make_writer,
};
const Format kToyTwo{
    .traits = {.name = "toy-two"},
    .suffixes = kToyTwoSuffix,
    .supersedes = kSupersedes,
    .write_options = kOptions,
    .detect = [](const Source& source) { return begins_with(source, "TOY2"); },
    .open = [](const Source& source, const OpenOptions&) -> std::unique_ptr<Reader> {
      return std::make_unique<ToyReader>(source, "toy-two");
    },
    .make_writer = make_writer,
};

}  // namespace
}  // namespace shard

extern "C" void shard_formats_3(shard::AddFormat add) {
  add(shard::kToy);
  add(shard::kToyTwo);
}
