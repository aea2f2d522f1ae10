#include "formats/torch/saved_file.h"

#include <fmt/format.h>

#include <algorithm>

#include "formats/parts/pickle/foreign_holder.h"
#include "formats/parts/zip/zip.h"
#include "formats/torch/legacy_file.h"
#include "formats/torch/saved_zip.h"
#include "formats/torch/source_zip.h"
#include "formats/torch/tensor_pickle.h"
#include "libshard/catalog/catalog.h"
#include "libshard/core/bytes.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/value_walk.h"

namespace shard::torch_save {

namespace {

constexpr std::int64_t kSmallRecord = 64;
constexpr int kLastVersion = 10;  // kMaxSupportedFileFormatVersion of caffe2/serialize/versions.h.

void refuse_torch_script(const zip::ZipReader& zip, const std::string& shown) {
  const std::string code = zip.folder() + "/code/";
  const bool has_code =
      std::ranges::any_of(zip.records(), [&](const zip::Record& record) { return record.name.starts_with(code); });
  if (zip.find("constants.pkl") == nullptr && !has_code) return;
  throw Error(ErrorCode::kUnsupported, "this is a TorchScript archive, which this build cannot read").in_file(shown);
}

bool has_big_endian_mark(const zip::ZipReader& zip, const std::string& shown) {
  try {
    return is_big_endian(zip);
  } catch (Error& error) {
    throw error.in_file(shown);
  }
}

/// Checks the version as torch does (caffe2/serialize/inline_container.cc), which reads the number at the record's
/// start and accepts versions 1 to 10.
void check_version(const zip::ZipReader& zip, const std::string& shown) {
  const zip::Record* record = zip.find(".data/version");
  if (record == nullptr) record = zip.find("version");
  if (record == nullptr) return;  // The record's local header is only read if the record exists.
  const std::vector<std::byte> content = zip.read(*record, kSmallRecord);
  const std::string_view text = as_text(content).substr(0, as_text(content).find_last_not_of(" \t\r\n") + 1);
  const int version = parse_number<int>(text).value_or(0);
  if (version >= 1 && version <= kLastVersion) return;
  throw Error(ErrorCode::kCorruption, "the version record does not contain a version of torch.save's zips")
      .in_file(shown)
      .of_kind(FindingKind::kBadHeader)
      .expected(fmt::format("1 to {}", kLastVersion))
      .found(text)
      .because("torch refuses such files too");
}

std::string_view version_of(const zip::ZipReader& zip) {
  if (zip.find(".format_version") != nullptr) return "zip, torch>=2.7";
  return zip.find("byteorder") != nullptr ? "zip, torch>=2.1" : "zip, torch>=1.6";
}

/// True if torch.save closed the zip without the pickle. It pickles everything first, but always closes the zip.
bool is_cut_save(const zip::ZipReader& zip) {
  return zip.find("version") != nullptr || zip.find(".data/version") != nullptr ||
         zip.find(".data/serialization_id") != nullptr;
}

std::shared_ptr<const std::vector<std::byte>> read_pickle(const zip::ZipReader& zip, Arena& arena,
                                                          const std::string& shown) {
  const zip::Record* record = zip.find("data.pkl");
  if (record == nullptr) {
    throw Error(ErrorCode::kCorruption, "the zip has no record data.pkl")
        .in_file(shown)
        .of_kind(FindingKind::kBadHeader)
        .because(is_cut_save(zip)
                     ? "torch.save wrote its last records but no pickle: it failed halfway, for example at an "
                       "object that cannot be pickled, so the tensors are not in the file"
                     : "torch.save always writes one, so this is a different kind of zip")
        .hint(is_cut_save(zip) ? "save the checkpoint again, or take an earlier one" : "");
  }
  arena.earn(zip.allocated_bytes(*record));
  return std::make_shared<const std::vector<std::byte>>(zip.read(*record, arena));
}

bool is_rebuilt_tensor(const Value& value) {
  return value.kind == ValueKind::kCall && value.callee() != nullptr && value.callee()->kind == ValueKind::kGlobal &&
         value.callee()->module() == "torch._utils" && value.callee()->text().starts_with("_rebuild_tensor");
}

SavedRecord::Coding coding_of(std::uint16_t method) {
  if (method == 0) return SavedRecord::Coding::kPlain;
  return method == zip::kDeflated ? SavedRecord::Coding::kDeflated : SavedRecord::Coding::kOther;
}

/// The zip of torch 1.6 and later.
class ZipFile final : public SavedFile {
 public:
  ZipFile(zip::ZipReader zip, std::vector<zip::LostRecord> lost, Arena& arena, const SavedFileOptions& options)
      : zip_(std::move(zip)), lost_(std::move(lost)) {
    refuse_torch_script(zip_, options.shown);
    check_version(zip_, options.shown);
    saved_as_ = zip_.folder();
    big_endian_ = has_big_endian_mark(zip_, options.shown);
    version_ = version_of(zip_);
    if (const zip::Record* note = zip_.find(kLostRecord)) lost_note_ = as_text(zip_.read(*note, arena));
    const std::shared_ptr<const std::vector<std::byte>> data = read_pickle(zip_, arena, options.shown);
    arena.adopt(data);
    root_ = pickle::load(arena, *data, load_options(options));
  }

  std::uint32_t record_count() const override { return static_cast<std::uint32_t>(zip_.records().size()); }

  std::uint32_t find(std::string_view key) const override {
    const zip::Record* record = zip_.find(fmt::format("data/{}", key));
    return record == nullptr ? kNoIndex : static_cast<std::uint32_t>(record - zip_.records().data());
  }

  SavedRecord record(std::uint32_t number) const override {
    const zip::Record& record = zip_.records()[number];
    return {record.bytes, record.stored_bytes, record.header_offset, coding_of(record.method), record.checksum()};
  }

  std::string why_lost(std::string_view key) const override { return torch_save::why_lost(lost_, key); }

  std::string record_name(std::uint32_t number) const override {
    const std::string& name = zip_.records()[number].name;
    return name.substr(std::min(name.size(), zip_.folder().size() + 1));
  }

  std::int64_t locate(std::uint32_t number) const override { return zip_.data_offset(zip_.records()[number]); }
  std::vector<std::int64_t> locate_all(std::span<const std::uint32_t> numbers) const override {
    return zip_.data_offsets(numbers);
  }

 private:
  zip::ZipReader zip_;
  std::vector<zip::LostRecord> lost_;
};

std::unique_ptr<SavedFile> salvage_file(const std::shared_ptr<const RandomReader>& file, Arena& arena,
                                        const SavedFileOptions& options) {
  zip::SalvagedZip salvaged = salvage_saved_zip(file, 0, file->size(), arena, options.shown);
  if (!salvaged.why_scanned.empty()) {
    options.findings->mend(fmt::format("{}: rebuilt the zip's directory from its {} whole records: {}", options.shown,
                                       salvaged.zip->records().size(), salvaged.why_scanned));
  }
  return std::make_unique<ZipFile>(std::move(*salvaged.zip), std::move(salvaged.lost), arena, options);
}

}  // namespace

pickle::LoadOptions load_options(const SavedFileOptions& options) {
  pickle::LoadOptions load_options;
  load_options.file = options.shown;
  load_options.allow = pickle::is_known_global;
  load_options.opaque_unknown = options.opaque_globals;
  load_options.suggest_opaque = true;
  load_options.behind_opaque = options.behind_opaque;
  return load_options;
}

std::unique_ptr<SavedFile> open_saved_file(std::shared_ptr<const RandomReader> file, Arena& arena,
                                           const SavedFileOptions& options) {
  if (is_legacy_file(*file)) return open_legacy_file(std::move(file), arena, options);
  if (options.findings->goes_on()) return salvage_file(file, arena, options);
  return std::make_unique<ZipFile>(zip::ZipReader(file, 0, file->size()), std::vector<zip::LostRecord>(), arena,
                                   options);
}

std::string_view HiddenTensors::kind_in(const Value& object) {
  // Nearly all objects are numbers and strings.
  if (object.kind != ValueKind::kCall && object.items().empty()) return {};
  ValueWalk walk(object);
  while (const Value* const value = walk.next()) {
    arena_.charge(Charge::kVisits);
    if (const std::string_view kind = unsupported_tensor_kind(*value); !kind.empty()) return kind;
    if (value->kind == ValueKind::kTensor || is_rebuilt_tensor(*value) || pickle::is_foreign_holder(*value)) {
      return "attribute";
    }
  }
  return {};
}

bool HiddenTensors::holds_unlisted(const Value& object) {
  if (object.kind != ValueKind::kCall && object.items().empty()) return false;
  return find_below(object, [this](const Value& value) {
           arena_.charge(Charge::kVisits);
           return is_rebuilt_tensor(value) || !unsupported_tensor_kind(value).empty();
         }) != nullptr;
}

bool is_parameter(const Value& value, HiddenTensors& hidden) {
  const bool has_state = value.is_call_of("torch._utils", "_rebuild_parameter_with_state");
  if (!has_state && !value.is_call_of("torch._utils", "_rebuild_parameter")) return false;
  if (value.items().size() < 3 || value.items()[1]->kind != ValueKind::kBool) return false;
  return !has_state || std::ranges::all_of(value.items().subspan(3),
                                           [&](const Value* state) { return hidden.kind_in(*state).empty(); });
}

bool has_attributes(const Value& parameter) {
  return parameter.is_call_of("torch._utils", "_rebuild_parameter_with_state");
}

bool drop_attributes(Arena& arena, Value& parameter, HiddenTensors& hidden) {
  constexpr std::size_t kState = 3;  // After data, requires_grad and hooks.
  if (!has_attributes(parameter) || parameter.items().size() <= kState) return false;
  const std::span<Value* const> states = parameter.items().subspan(kState);
  const bool is_lost = std::ranges::any_of(states, [&](const Value* state) {
    return !hidden.kind_in(*state).empty() ||
           find_below(*state, [](const Value& value) { return value.kind == ValueKind::kOpaque; }) != nullptr;
  });
  if (!is_lost) return false;
  Value* const function = make_global(arena, "torch._utils", "_rebuild_parameter");
  parameter = *make_call(arena, function, parameter.items().first(kState));
  return true;
}

std::string lost_attributes_text(const FirstNames& names) {
  return fmt::format("tensors are read without the attributes of their Python objects: {}", names.text());
}

}  // namespace shard::torch_save
