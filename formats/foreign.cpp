#include "formats/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "formats/hdf5_source.h"
#include "formats/parts/zip/zip.h"
#include "formats/registry.h"
#include "libshard/core/ascii.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard {

namespace {

using std::string_view_literals::operator""sv;

constexpr std::int64_t kHeadBytes = 4096;
constexpr std::string_view kLegacyTorch = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"sv;

/// A kind that is recognised by the first bytes of a file.
struct Magic {
  std::string_view bytes;
  std::string_view what;
  std::string_view unpacker = {};  ///< The program that unpacks it; empty if none is needed.
};
constexpr std::array kMagics{
    Magic{"GGUF"sv, "a GGUF file"},
    Magic{"PYTORCH1"sv, "a preview TorchScript archive"},
    Magic{kLegacyTorch, "a torch.save file of torch 1.5 or older"},
    Magic{"\x93NUMPY"sv, "a NumPy array"},
    Magic{"lmgg"sv, "a GGML file"},
    Magic{"tjgg"sv, "a GGML file"},
    Magic{"\x1f\x8b"sv, "a gzip file", "gzip"},
    Magic{"\x28\xb5\x2f\xfd"sv, "a zstd file", "zstd"},
    Magic{"\xfd\x37zXZ\0"sv, "an xz file", "xz"},
    Magic{"BZh"sv, "a bzip2 file", "bzip2"},
};

/// A kind that is recognised by a name in the folder, or by the end of one.
struct Mark {
  std::string_view name;
  std::string_view what;
  bool is_suffix = false;
};
constexpr std::array kMarks{
    Mark{".snapshot_metadata", "a torchsnapshot checkpoint"},
    Mark{"metadata.pkl", "a torch_checkpointing checkpoint"},
    Mark{"consolidated.00.pth", "a Llama checkpoint of model-parallel parts"},
    Mark{"checkpoint_metadata.json", "a nanotron checkpoint"},
    Mark{"_CHECKPOINT_METADATA", "an Orbax checkpoint"},
    Mark{"manifest.ocdbt", "an Orbax checkpoint"},
    Mark{"saved_model.pb", "a TensorFlow SavedModel"},
    Mark{"flax_model.msgpack", "a Flax checkpoint"},
    Mark{".gguf", "a folder of GGUF files", true},
    Mark{".data-00000-of-00001", "a TensorFlow checkpoint", true},
    Mark{".onnx", "a folder of ONNX models", true},
};

/// The first bytes of a file; empty if `path` is not a file.
std::string head_of(const SourceStore& store, const std::string& path) {
  if (!store.is_file(path)) return {};
  return front_of(*store.open(path), kHeadBytes);
}

constexpr std::string_view kKerasFile = "a Keras file of compressed weights";

/// The kind of a zip with these records; empty for a torch.save file.
std::string_view foreign_records(const zip::ZipReader& zip) {
  const auto any = [&](const auto& predicate) {
    return std::ranges::any_of(zip.records(), predicate, &zip::Record::name);
  };
  const auto in_folder = [&](std::string_view name) { return zip.folder() + std::string(name); };
  const auto is_export = [&](std::string_view name) {  // The record of current versions, and of torch 2.1 to 2.6.
    return name == in_folder("/archive_format") || name == "serialized_exported_program.json";
  };
  const auto is_script = [&](std::string_view name) {
    return name.ends_with("/constants.pkl") || name.starts_with(in_folder("/code/"));
  };
  if (any(is_export)) return "a program of torch.export";
  if (any(is_script)) return "a TorchScript archive";
  if (any([&](std::string_view name) { return name == in_folder("/.data/extern_modules"); })) return "a torch.package";
  if (any([](std::string_view name) { return name == kKerasWeightsName; })) return kKerasFile;
  const auto is_array = [](std::string_view name) { return name.ends_with(".npy"); };
  const bool are_arrays = std::ranges::all_of(zip.records(), is_array, &zip::Record::name);
  return are_arrays && !zip.records().empty() ? "a NumPy archive" : std::string_view();
}

/// The kind of the zip at `path`.
std::string_view foreign_zip(const SourceStore& store, const std::string& path) {
  try {
    const std::shared_ptr<const RandomReader> file = store.open(path);
    return foreign_records(zip::ZipReader(file, 0, file->size()));
  } catch (const Error& error) {
    if (!is_about_content(error)) throw;
    return {};  // The torch reader reports the damage of a zip.
  }
}

/// True for a web page that a server sent instead of the file, such as a login or an error.
bool is_web_page(std::string_view head) {
  constexpr std::array kBegins{"<!doctype html"sv, "<html"sv, "<?xml"sv};
  return std::ranges::any_of(kBegins, [&](std::string_view begin) {
    return std::ranges::equal(head.substr(0, begin.size()), begin, {}, to_lower);
  });
}

/// The error for a pointer that a version control system left for a large file.
std::optional<Error> pointer_file(std::string_view head, const std::string& path) {
  const auto refusal = [&](const char* what) {
    return Error(ErrorCode::kCorruption, what).in_file(path).of_kind(FindingKind::kMissingFile);
  };
  if (head.starts_with("version https://git-lfs.github.com/")) {
    return refusal("this is a Git LFS pointer, not the file itself").hint("fetch the content with: git lfs pull");
  }
  if (head.starts_with("/annex/objects/")) {
    return refusal("this is a git-annex pointer, not the file itself").hint("fetch the content with: git annex get");
  }
  return std::nullopt;
}

/// Suggests to unpack an archive whose weights cannot be read inside it.
Error unpacked_keras(const std::string& path) {
  return unreadable_kind(kKerasFile, path)
      .because(fmt::format("{} is an HDF5 file in this zip", kKerasWeightsName))
      .suggest(Remedy::kUnpack, fmt::format("unzip {}", kKerasWeightsName));
}

std::optional<Error> look_alike_file(const SourceStore& store, const std::string& path) {
  const std::string head = head_of(store, path);
  if (head.starts_with("PK\x03\x04") && !is_keras_archive(store, path)) {
    const std::string_view what = foreign_zip(store, path);
    if (what == kKerasFile) return unpacked_keras(path);
    if (!what.empty()) return unreadable_kind(what, path);
  }
  if (auto pointer = pointer_file(head, path)) return pointer;
  if (is_web_page(head)) {
    return Error(ErrorCode::kCorruption, "this is a web page, not the file itself")
        .in_file(path)
        .because("a server answered with a login or error page, which was saved under the file's name")
        .hint("fetch the file again");
  }
  return std::nullopt;
}

/// Recognises folders with files of dcp that have a different format.
std::optional<Error> look_alike_folder(const SourceStore& store, const std::string& folder) {
  const std::string metadata = head_of(store, join_path(folder, ".metadata"));
  // Its metadata is a pickle of its own class, and the items beside it are bytes without a header.
  if (metadata.find("bytecheckpoint.checkpointer.meta_type") != std::string::npos) {
    return unreadable_kind("a ByteCheckpoint checkpoint", folder);
  }
  return std::nullopt;
}

std::optional<Error> foreign_folder(const SourceStore& store, const std::string& folder) {
  const std::vector<std::string> names = store.list(folder);
  for (const Mark& mark : kMarks) {
    const auto fits = [&](std::string_view name) {
      return mark.is_suffix ? name.ends_with(mark.name) : name == mark.name;
    };
    if (std::ranges::any_of(names, fits)) return unreadable_kind(mark.what, folder);
  }
  return std::nullopt;
}

constexpr std::string_view kTar = "a tar archive";

/// True for a usual name of a compressed tar archive; NeMo's archives end in .nemo.
bool is_packed_tar(std::string_view path) {
  constexpr std::array kEnds{".tgz"sv, ".nemo"sv, ".tar.gz"sv, ".tar.bz2"sv, ".tar.xz"sv, ".tar.zst"sv};
  return ends_in_any(path, kEnds);
}

/// The kind of a tar archive, which POSIX marks at byte 257; empty for other files. Its first member tells torch 0.1's.
std::string_view tar_kind(std::string_view head) {
  if (head.size() <= 262 || head.substr(257, 5) != "ustar") return {};
  constexpr std::array kMembers{"storages"sv, "sys_info"sv, "pickle"sv, "tensors"sv};
  const bool is_torch = std::ranges::any_of(kMembers, [&](std::string_view name) { return head.starts_with(name); });
  return is_torch ? "a torch.save tar archive of torch 0.1" : kTar;
}

/// True if the whole file is one pickle of protocol 2 or later.
bool is_plain_pickle(const SourceStore& store, const std::string& path, std::string_view head) {
  if (head.size() < 3 || head[0] != '\x80' || head[1] < 2 || head[1] > 5) return false;
  const auto file = store.open(path);
  std::byte last{};
  file->read_at(file->size() - 1, {&last, 1});
  return last == std::byte{'.'};
}

std::optional<Error> foreign_file(const SourceStore& store, const std::string& path) {
  const std::string head = head_of(store, path);
  for (const Magic& magic : kMagics) {
    if (!head.starts_with(magic.bytes)) continue;
    Error error = unreadable_kind(magic.what, path);
    if (!magic.unpacker.empty()) error.suggest(Remedy::kUnpack, is_packed_tar(path) ? "tar" : magic.unpacker);
    return error;
  }
  if (is_plain_pickle(store, path, head)) {
    return unreadable_kind("a plain Python pickle", path).because("torch.save writes a zip");
  }
  if (const std::string_view tar = tar_kind(head); !tar.empty()) {
    Error error = unreadable_kind(tar, path);
    if (tar == kTar) error.suggest(Remedy::kUnpack, "tar");
    return error;
  }
  return std::nullopt;
}

/// The first error that a format has for the path.
template <class Refusal>
std::optional<Error> ask_formats(Refusal Format::*refusal, const SourceStore& store, const std::string& path) {
  for (const Format* format : formats()) {
    if (format->*refusal == nullptr) continue;
    if (auto error = (format->*refusal)(store, path)) return error;
  }
  return std::nullopt;
}

}  // namespace

Error unreadable_kind(std::string_view what, const std::string& path) {
  return Error(ErrorCode::kUnsupported, fmt::format("this is {}, which this build cannot read", what)).in_file(path);
}

std::optional<Error> pointer_at(const SourceStore& store, const std::string& path) {
  const FileStatus status = store.status(path);
  if (status.kind == FileKind::kAbsent) {
    return Error(ErrorCode::kNotFound, "this is a broken symlink, not the file itself")
        .in_file(path)
        .of_kind(FindingKind::kMissingFile)
        .because("git-annex and Hugging Face's cache leave a symlink when the content was not fetched or was removed")
        .hint("fetch the content, for example with: git annex get");
  }
  constexpr std::int64_t kLongestPointer = 1024;
  if (status.kind != FileKind::kFile || status.bytes > kLongestPointer) return std::nullopt;
  return pointer_file(head_of(store, path), path);
}

std::optional<Error> foreign_look_alike(const Source& source) {
  for (const std::string& path : source.paths) {
    if (auto error = ask_formats(&Format::refuse_part, *source.store, path)) return error;
    const bool is_folder = source.store->is_folder(path);
    auto error = is_folder ? look_alike_folder(*source.store, path) : look_alike_file(*source.store, path);
    if (error) return error;
  }
  return std::nullopt;
}

std::optional<Error> foreign_kind(const Source& source) {
  const SourceStore& store = *source.store;
  for (const std::string& path : source.paths) {
    if (auto error = ask_formats(&Format::explain_refusal, store, path)) return error;
    const bool is_folder = store.is_folder(path);
    if (auto error = is_folder ? foreign_folder(store, path) : foreign_file(store, path)) return error;
  }
  return std::nullopt;
}

}  // namespace shard
