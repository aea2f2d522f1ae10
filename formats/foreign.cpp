#include "formats/foreign.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>

#include "formats/hdf5_source.h"
#include "formats/parts/zip/zip.h"
#include "formats/registry.h"
#include "libshard/core/ascii.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"
#include "libshard/io/url_path.h"

namespace shard {

namespace {

using std::string_view_literals::operator""sv;

constexpr std::int64_t kHeadBytes = 4096;
constexpr std::string_view kLegacyTorch = "\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19\x2e"sv;

/// A kind of checkpoint, and how its own library converts it.
struct ForeignKind {
  std::string_view what;  ///< Empty for none.
  std::string_view advice = {};
};

constexpr ForeignKind kGguf{
    "a GGUF file",
    "read the model that it was converted from, or load it with transformers (from_pretrained with "
    "gguf_file) and call save_pretrained"};
constexpr ForeignKind kGgml{"a GGML file", "read the model that it was converted from"};
constexpr ForeignKind kPickle{"a plain Python pickle",
                              "if you trust it, load it in Python and save it with torch.save"};
constexpr ForeignKind kTorchTar{"a torch.save tar archive of torch 0.1", "load it with torch and save it again"};
constexpr ForeignKind kArray{"a NumPy array", "load it with numpy.load and save it with safetensors.numpy.save_file"};
constexpr ForeignKind kArrays{"a NumPy archive", kArray.advice};
constexpr ForeignKind kScript{"a TorchScript archive",
                              "load it with torch.jit.load and save its state_dict() with torch.save"};
constexpr ForeignKind kExport{"a program of torch.export",
                              "load it with torch.export.load and save its state_dict with torch.save"};
constexpr ForeignKind kPackage{
    "a torch.package", "load the model with torch.package.PackageImporter and save its state_dict() with torch.save"};
constexpr ForeignKind kBaselines{"a Stable-Baselines3 model",
                                 "unpack its policy.pth, a file of torch.save, with: unzip FILE.zip policy.pth"};
constexpr ForeignKind kKeras{"a Keras file of compressed weights"};
constexpr ForeignKind kSnapshot{"a torchsnapshot checkpoint",
                                "restore it with torchsnapshot and save it with torch.distributed.checkpoint"};
constexpr ForeignKind kCheckpointing{
    "a torch_checkpointing checkpoint",
    "restore it with torch_checkpointing and save it with torch.distributed.checkpoint"};
constexpr ForeignKind kNanotron{"a nanotron checkpoint", "convert it with nanotron's convert_nanotron_to_hf.py"};
constexpr std::string_view kNanotronName = "checkpoint_metadata.json";
constexpr ForeignKind kOrbax{"an Orbax checkpoint",
                             "restore it with orbax.checkpoint and save its arrays with safetensors.flax.save_file"};
constexpr ForeignKind kFlax{"a Flax checkpoint",
                            "load it with flax.serialization.msgpack_restore and save its arrays with "
                            "safetensors.flax.save_file"};
constexpr ForeignKind kTensorFlow{"a TensorFlow checkpoint",
                                  "load it with tf.train.load_checkpoint and save its arrays with "
                                  "safetensors.numpy.save_file"};
constexpr ForeignKind kSavedModel{"a TensorFlow SavedModel",
                                  "load its variables/variables with tf.train.load_checkpoint and save the arrays with "
                                  "safetensors.numpy.save_file"};
constexpr ForeignKind kLite{"a TensorFlow Lite model", "read the model that it was converted from"};
constexpr ForeignKind kOnnx{"an ONNX model",
                            "read the model that it was exported from, or save its initializers with "
                            "onnx.numpy_helper.to_array and safetensors.numpy.save_file"};

/// The first bytes of a kind of file.
struct Magic {
  std::string_view bytes;
  ForeignKind kind;
  std::string_view unpacker = {};  ///< The program that unpacks it; empty if none is needed.
};
constexpr std::array kMagics{
    Magic{"GGUF"sv, kGguf},
    Magic{"PYTORCH1"sv, {"a preview TorchScript archive"}},
    Magic{kLegacyTorch, {"a torch.save file of torch 1.5 or older"}},
    Magic{"\x93NUMPY"sv, kArray},
    Magic{"lmgg"sv, kGgml},
    Magic{"tjgg"sv, kGgml},
    Magic{"\x1f\x8b"sv, {"a gzip file"}, "gzip"},
    Magic{"\x28\xb5\x2f\xfd"sv, {"a zstd file"}, "zstd"},
    Magic{"\xfd\x37zXZ\0"sv, {"an xz file"}, "xz"},
    Magic{"BZh"sv, {"a bzip2 file"}, "bzip2"},
};

/// A name, or the end of one, that identifies a kind of folder. Most ends also identify a file that has no magic.
struct Mark {
  std::string_view name;
  ForeignKind kind;
  bool is_suffix = false;
};
constexpr std::array kMarks{
    Mark{".snapshot_metadata", kSnapshot},
    Mark{"metadata.pkl", kCheckpointing},
    Mark{kNanotronName, kNanotron},
    Mark{"_CHECKPOINT_METADATA", kOrbax},
    Mark{"manifest.ocdbt", kOrbax},
    Mark{"_METADATA", kOrbax},
    Mark{"saved_model.pb", kSavedModel},
    Mark{"flax_model.msgpack", kFlax},
    Mark{".gguf", kGguf, true},
    Mark{".data-00000-of-00001", kTensorFlow, true},
    Mark{".onnx", kOnnx, true},
};
constexpr std::array kFileMarks{
    Mark{".onnx", kOnnx, true},
    Mark{".msgpack", kFlax, true},
    Mark{".tflite", kLite, true},
    Mark{".data-00000-of-00001", kTensorFlow, true},
};

/// The second of Meta's files. A folder with only the first is read as that file.
constexpr std::string_view kSecondLlamaPart = "consolidated.01.pth";

/// The first bytes of a file; empty if `path` is not a file.
std::string head_of(const SourceStore& store, const std::string& path) {
  if (!store.is_file(path)) return {};
  return front_of(*store.open(path), kHeadBytes);
}

/// The kind of a zip with these records; none for a torch.save file.
ForeignKind foreign_records(const zip::ZipReader& zip) {
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
  if (any(is_export)) return kExport;
  if (any(is_script)) return kScript;
  if (any([&](std::string_view name) { return name == in_folder("/.data/extern_modules"); })) return kPackage;
  if (any([](std::string_view name) { return name == "_stable_baselines3_version"; })) return kBaselines;
  if (any([](std::string_view name) { return name == kKerasWeightsName; })) return kKeras;
  const auto is_array = [](std::string_view name) { return name.ends_with(".npy"); };
  const bool are_arrays = std::ranges::all_of(zip.records(), is_array, &zip::Record::name);
  return are_arrays && !zip.records().empty() ? kArrays : ForeignKind{};
}

/// The kind of the zip at `path`.
ForeignKind foreign_zip(const SourceStore& store, const std::string& path) {
  try {
    const std::shared_ptr<const RandomReader> file = store.open(path);
    return foreign_records(zip::ZipReader(file, 0, file->size()));
  } catch (const Error& error) {
    if (!is_about_content(error)) throw;
    return {};  // The torch reader reports the damage of a zip.
  }
}

bool is_web_page(std::string_view head) {
  constexpr std::array kBegins{"<!doctype html"sv, "<html"sv, "<?xml"sv};
  return std::ranges::any_of(kBegins, [&](std::string_view begin) {
    return std::ranges::equal(head.substr(0, begin.size()), begin, {}, to_lower);
  });
}

std::optional<Error> web_page(std::string_view head, const std::string& path) {
  if (!is_web_page(head)) return std::nullopt;
  return Error(ErrorCode::kCorruption, "this is a web page, not the file itself")
      .in_file(path)
      .of_kind(FindingKind::kBadHeader)
      .because("a server answered with a login or error page, which was saved under the file's name")
      .hint("fetch the file again");
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

Error unreadable(const ForeignKind& kind, const std::string& path) {
  return unreadable_kind(kind.what, path).hint(kind.advice);
}

/// Suggests to unpack an archive whose weights cannot be read inside it.
Error unpacked_keras(const std::string& path) {
  return unreadable(kKeras, path)
      .because(fmt::format("{} is an HDF5 file in this zip", kKerasWeightsName))
      .suggest(Remedy::kUnpack, fmt::format("unzip {}", kKerasWeightsName));
}

std::optional<Error> look_alike_file(const SourceStore& store, const std::string& path) {
  const std::string head = head_of(store, path);
  if (head.starts_with("PK\x03\x04") && !is_keras_archive(store, path)) {
    const ForeignKind kind = foreign_zip(store, path);
    if (kind.what == kKeras.what) return unpacked_keras(path);
    if (!kind.what.empty()) return unreadable(kind, path);
  }
  if (auto pointer = pointer_file(head, path)) return pointer;
  return web_page(head, path);
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

/// Recognises the folder or file `path` by the first mark that fits one of `names`.
std::optional<Error> marked(std::span<const Mark> marks, std::span<const std::string> names, const std::string& path) {
  for (const Mark& mark : marks) {
    const auto fits = [&](std::string_view name) {
      return mark.is_suffix ? name.ends_with(mark.name) : name == mark.name;
    };
    if (std::ranges::any_of(names, fits)) return unreadable(mark.kind, path);
  }
  return std::nullopt;
}

/// True for a map of MessagePack that begins with a key of text, as flax.serialization.to_bytes writes it.
bool is_flax(std::string_view head) {
  if (head.empty()) return false;
  const auto byte_at = [&](std::size_t at) { return static_cast<unsigned char>(at < head.size() ? head[at] : '\0'); };
  const unsigned char map = byte_at(0);
  const std::size_t key = map == 0xde ? 3 : map == 0xdf ? 5 : 1;
  if (key == 1 && (map < 0x81 || map > 0x8f)) return false;
  if (byte_at(key) < 0xa1 || byte_at(key) > 0xbf) return false;
  const std::string_view text = head.substr(key + 1, byte_at(key) - 0xa0U);
  return text.size() == byte_at(key) - 0xa0U && is_alphanumeric(text, "_.-/ ");
}

/// The files that flax.training.checkpoints names by their steps.
std::optional<Error> flax_steps(const SourceStore& store, const std::string& folder,
                                const std::vector<std::string>& names) {
  constexpr std::string_view kStep = "checkpoint_";
  for (const std::string& name : names) {
    const std::string path = join_path(folder, name);
    if (name.starts_with(kStep) && is_flax(head_of(store, path))) return unreadable(kFlax, path);
  }
  return std::nullopt;
}

std::optional<Error> foreign_folder(const SourceStore& store, const std::string& folder) {
  const std::vector<std::string> names = store.list(folder);
  if (contains(names, kSecondLlamaPart)) {
    return Error(ErrorCode::kUnsupported, "this is a Llama checkpoint of model-parallel parts")
        .in_file(folder)
        .because("its files do not record how their tensors were sharded")
        .hint("read it through the model map llama-pth, with the folder of the model's config.json");
  }
  if (auto error = marked(kMarks, names, folder)) return error;
  return flax_steps(store, folder, names);
}

constexpr ForeignKind kTar{"a tar archive"};

/// True for a usual name of a compressed tar archive; NeMo's archives end in .nemo.
bool is_packed_tar(std::string_view path) {
  constexpr std::array kEnds{".tgz"sv, ".nemo"sv, ".tar.gz"sv, ".tar.bz2"sv, ".tar.xz"sv, ".tar.zst"sv};
  return ends_in_any(path, kEnds);
}

/// The kind of a tar archive, which POSIX marks at byte 257; none for other files. The first member identifies archives
/// of torch 0.1.
ForeignKind tar_kind(std::string_view head) {
  if (head.size() <= 262 || head.substr(257, 5) != "ustar") return {};
  constexpr std::array kMembers{"storages"sv, "sys_info"sv, "pickle"sv, "tensors"sv};
  const bool is_torch = std::ranges::any_of(kMembers, [&](std::string_view name) { return head.starts_with(name); });
  return is_torch ? kTorchTar : kTar;
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
    Error error = unreadable(magic.kind, path);
    if (!magic.unpacker.empty() && is_url(path)) error.hint("download the file and unpack it");
    if (!magic.unpacker.empty() && !is_url(path)) {
      error.suggest(Remedy::kUnpack, is_packed_tar(path) ? "tar" : magic.unpacker);
    }
    return error;
  }
  if (is_plain_pickle(store, path, head)) return unreadable(kPickle, path).because("torch.save writes a zip");
  if (const ForeignKind tar = tar_kind(head); !tar.what.empty()) {
    Error error = unreadable(tar, path);
    if (tar.what == kTar.what) error.suggest(Remedy::kUnpack, "tar");
    return error;
  }
  if (is_flax(head)) return unreadable(kFlax, path);
  const std::string name = base_name(path);
  return marked(kFileMarks, std::span(&name, 1), path);
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
    if (is_url(path)) return std::nullopt;  // Its folder was listed under a different spelling.
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

std::optional<Error> web_page_at(const SourceStore& store, const std::string& path) {
  return web_page(head_of(store, path), path);
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

bool is_nanotron_folder(const SourceStore& store, const std::string& folder) {
  return store.exists(join_path(folder, std::string(kNanotronName)));
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
