#include "formats/torch/saved_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "formats/pickle/pickle.h"
#include "formats/torch/source_files.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/visited.h"
#include "libshard/core/error.h"

namespace shard::torch_save {

namespace {

constexpr std::int64_t kSmallRecord = 64;
// Deflate shrinks pickles of tensors about tenfold; a far better ratio is an attack.
constexpr std::int64_t kInflateRatio = 64, kInflateAlways = 1 << 20;

std::string_view as_text(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

void refuse_torch_script(const zip::ZipReader& zip, const std::string& shown) {
  const std::string code = zip.folder() + "/code/";
  const bool has_code =
      std::ranges::any_of(zip.records(), [&](const zip::Record& record) { return record.name.starts_with(code); });
  if (zip.find("constants.pkl") == nullptr && !has_code) return;
  throw Error(ErrorCode::kUnsupported, "this is a TorchScript archive, which this build cannot read").in_file(shown);
}

bool is_big_endian(const zip::ZipReader& zip, const std::string& shown) {
  const zip::Record* record = zip.find("byteorder");
  if (record == nullptr) return false;  // Before torch 2.1: little.
  const std::vector<std::byte> content = zip.read(*record, kSmallRecord);
  if (as_text(content) == "little" || as_text(content) == "big") return as_text(content) == "big";
  throw Error(ErrorCode::kCorruption, "the byteorder record is neither little nor big")
      .in_file(shown)
      .of_kind("bad_header")
      .found(as_text(content));
}

std::string_view version_of(const zip::ZipReader& zip) {
  if (zip.find(".format_version") != nullptr) return "zip, torch>=2.7";
  return zip.find("byteorder") != nullptr ? "zip, torch>=2.1" : "zip, torch>=1.6";
}

std::shared_ptr<const std::vector<std::byte>> read_pickle(const zip::ZipReader& zip, const std::string& shown) {
  const zip::Record* record = zip.find("data.pkl");
  if (record == nullptr) {
    throw Error(ErrorCode::kCorruption, "the zip has no record data.pkl")
        .in_file(shown)
        .of_kind("bad_header")
        .because("torch.save always writes one: this is another kind of zip");
  }
  const std::int64_t limit =
      record->method == 0 ? record->bytes : kInflateAlways + record->stored_bytes * kInflateRatio;
  return std::make_shared<const std::vector<std::byte>>(zip.read(*record, limit));
}

bool is_rebuilt_tensor(const Value& value) {
  return value.kind == ValueKind::kCall && value.callee != nullptr && value.callee->kind == ValueKind::kGlobal &&
         value.callee->module == "torch._utils" && value.callee->text.starts_with("_rebuild_tensor");
}

void push_children(const Value& value, std::vector<const Value*>& stack) {
  stack.insert(stack.end(), value.items.begin(), value.items.end());
  if (value.callee != nullptr) stack.push_back(value.callee);
  if (value.extra == nullptr) return;
  stack.insert(stack.end(), value.extra->list_items.begin(), value.extra->list_items.end());
  stack.insert(stack.end(), value.extra->dict_items.begin(), value.extra->dict_items.end());
  if (value.extra->state != nullptr) stack.push_back(value.extra->state);
  if (value.extra->kwargs != nullptr) stack.push_back(value.extra->kwargs);
}

}  // namespace

SavedFile open_saved_file(std::shared_ptr<const RandomReader> file, Arena& arena, const std::string& shown) {
  if (is_legacy_save(*file)) {
    throw Error(ErrorCode::kUnsupported, "this is a legacy torch.save file (before 1.6), which this build cannot read")
        .in_file(shown)
        .hint("load it in Python and save it again with torch.save");
  }
  SavedFile saved;
  const std::int64_t bytes = file->size();
  saved.zip = std::make_unique<zip::ZipReader>(std::move(file), 0, bytes);
  refuse_torch_script(*saved.zip, shown);
  saved.big_endian = is_big_endian(*saved.zip, shown);
  saved.version = version_of(*saved.zip);
  const std::shared_ptr<const std::vector<std::byte>> data = read_pickle(*saved.zip, shown);
  arena.adopt(data);
  pickle::LoadOptions options;
  options.file = shown;
  options.allow = pickle::is_known_global;
  saved.root = pickle::load(arena, *data, options);
  return saved;
}

std::string_view hidden_tensor_kind(const Value& object) {
  if (object.kind != ValueKind::kCall && object.items.empty()) return {};  // Nearly all: numbers and strings.
  VisitedSet visited;
  std::vector<const Value*> stack{&object};
  while (!stack.empty()) {
    const Value& value = *stack.back();
    stack.pop_back();
    if (!visited.insert(&value)) continue;
    if (const std::string_view kind = unsupported_tensor_kind(value); !kind.empty()) return kind;
    if (value.kind == ValueKind::kTensor || is_rebuilt_tensor(value)) return "attribute";
    push_children(value, stack);
  }
  return {};
}

}  // namespace shard::torch_save
