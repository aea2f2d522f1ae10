#include "formats/export/model_folder.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

#include "formats/parts/json/json_cursor.h"
#include "libshard/core/ascii.h"
#include "libshard/core/contains.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"
#include "libshard/io/small_text.h"

namespace shard {

namespace {

constexpr const char *kBeside = "huggingface", *kTemplates = "additional_chat_templates", *kModules = "modules.json";
constexpr std::string_view kCode = ".py";
/// Files of sentence-transformers beside modules.json, and the weights in the folders of its modules.
constexpr std::array<std::string_view, 3> kModuleNames{kModules, "sentence_bert_config.json",
                                                       "config_sentence_transformers.json"},
    kModuleWeights{"model.safetensors", "pytorch_model.bin", "sentence_embedding.bin"};
constexpr std::int64_t kMaxConfigBytes = 16 << 20, kBlock = 1 << 20, kMostHeld = 256 << 20, kMostRefBytes = 4096;
constexpr std::size_t kMostFiles = 1000;  ///< Limited because each file stays open until the output is complete.
constexpr std::array<std::string_view, 47> kNames{
    kConfigName,
    kOpenClipConfigName,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tiktoken.model",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab-src.json",
    "vocab-tgt.json",
    "target_vocab.json",
    "entity_vocab.json",
    "vocab.txt",
    "vocab.bpe",
    "merges.txt",
    "bpe.codes",
    "byte_maps.json",
    "dict.txt",
    "emoji.json",
    "encoder.json",
    "normalizer.json",
    "prophetnet.tokenizer",
    "spiece.model",
    "spm.model",
    "spm_char.model",
    "sentencepiece.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "word_pronunciation.json",
    "word_shape.json",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "image_processor_config.json",
    "audio_tokenizer_config.json",
    "configuration.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "quanto_qmap.json",
};
constexpr std::array<std::string_view, 3> kEnds{".py", ".tiktoken", ".jinja"};

bool is_model_file(std::string_view name) {
  if (name.starts_with('.')) return false;
  return contains(kNames, name) || ends_in_any(name, kEnds);
}

/// Whether a name from the source may be used in the output. It may begin with '_', as __init__.py does.
bool is_plain_name(std::string_view name) {
  return !name.empty() && is_alphanumeric(name.substr(0, 1), "_") && is_alphanumeric(name, "._+=-");
}

/// "1_Pooling": the folder of a module of sentence-transformers.
bool is_module_folder(std::string_view name) {
  const std::size_t digits = name.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string_view::npos && name[digits] == '_';
}

/// A value of a config as spelled in the text: `true`, `"bfloat16"`.
struct RawConfig {
  std::string ties, dtype, older_dtype, type, class_name;
};

RawConfig read_object(JsonCursor& json) {
  RawConfig config, inner;
  json.enter_object();
  std::string_view key;
  for (bool is_first = true; json.next_key(key, is_first);) {
    const std::string_view name = key;
    if (name == "text_config" && json.is_next('{')) {
      inner = read_object(json);
      continue;
    }
    std::string value(json.raw_value());
    std::erase_if(value, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '"'; });
    if (name == "tie_word_embeddings") config.ties = value;
    if (name == "model_type") config.type = value;
    if (name == "_class_name") config.class_name = value;
    if (name == "dtype" && value != "null") config.dtype = value;
    if (name == "torch_dtype" && value != "null") config.older_dtype = value;
  }
  if (config.ties.empty()) config.ties = inner.ties;
  if (config.dtype.empty()) config.dtype = config.older_dtype;  // The order of transformers.
  if (config.dtype.empty()) config.dtype = inner.dtype;
  return config;
}

/// The folder of `source`, and the folders above it up to `named`. If `named` is the folder of the source itself, the
/// one above it follows.
std::vector<FilesFolder> folders_of(const SourceStore& store, const std::string& source, const std::string& named) {
  std::vector<FilesFolder> folders;
  std::string at = store.is_folder(source) ? source : parent_path(source);
  folders.push_back({at});
  if (at == source && source == named) folders.push_back({parent_path(at), true});
  while (at != named && at.size() > named.size() && at.starts_with(named)) folders.push_back({at = parent_path(at)});
  return folders;
}

void add_templates(const SourceStore& store, const std::string& folder, FolderFiles& files) {
  const std::string templates = join_path(folder, kTemplates);
  if (!store.is_folder(templates)) return;
  for (const std::string& name : store.list(templates)) {
    if (!name.ends_with(".jinja") || !store.is_file(join_path(templates, name))) continue;
    (is_plain_name(name) ? files.names : files.odd_names).push_back(join_path(kTemplates, name));
  }
}

/// Adds the files of one module's folder.
void add_module(const SourceStore& store, const std::string& folder, const std::string& module, bool takes_weights,
                FolderFiles& files) {
  for (const std::string& name : store.list(join_path(folder, module))) {
    const std::string path = join_path(module, name);
    if (!store.is_file(join_path(folder, path)) || !is_plain_name(name)) continue;
    const bool is_weights = contains(kModuleWeights, name);
    if (is_weights && !takes_weights) files.module_weights.push_back(path);
    const bool is_taken = is_weights ? takes_weights : is_model_file(name) && !name.ends_with(kCode);
    if (is_taken || contains(kModuleNames, name)) files.names.push_back(path);
  }
}

/// Adds the folders of sentence-transformers' modules, and its own configuration.
void add_modules(const SourceStore& store, const std::string& folder, const std::vector<std::string>& names,
                 bool takes_weights, FolderFiles& files) {
  if (!contains(names, kModules)) return;
  for (const std::string& name : names) {
    if (contains(kModuleNames, name) && store.is_file(join_path(folder, name))) files.names.push_back(name);
    const bool is_module = is_module_folder(name) && is_plain_name(name) && store.is_folder(join_path(folder, name));
    if (is_module) add_module(store, folder, name, takes_weights, files);
  }
}

class HeldFile final : public RandomReader {
 public:
  HeldFile(std::vector<std::byte> bytes, const std::string& name) : bytes_(std::move(bytes)) { name_ = name; }
  void read_at(std::int64_t offset_bytes, std::span<std::byte> out) const override {
    const std::int64_t end = offset_bytes + std::ssize(out);
    if (offset_bytes < 0 || end > size()) throw file_too_short(name_, size(), end);
    std::copy_n(bytes_.begin() + offset_bytes, out.size(), out.begin());
  }
  std::int64_t size() const override { return std::ssize(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class AddingWriter final : public Writer {
 public:
  AddingWriter(std::unique_ptr<Writer> inner, std::vector<AddedFile> files, LocalDisk* reflink_disk)
      : inner_(std::move(inner)), files_(std::move(files)), reflink_disk_(reflink_disk) {}

  void place(Catalog& target) override {
    inner_->place(target);
    first_ = static_cast<std::uint32_t>(target.files.size());
    for (const AddedFile& file : files_) target.files.push_back({file.path, file.bytes});
  }

  bool needs_checksums() const override { return inner_->needs_checksums(); }
  bool is_folder() const override { return inner_->is_folder(); }
  std::unique_ptr<StorageFrames> frames(const Catalog& target) const override { return inner_->frames(target); }

  void begin_file(const Catalog& target, std::uint32_t file, FileWriter& to) override {
    if (file < first_) return inner_->begin_file(target, file, to);
    const AddedFile& added = files_[file - first_];
    const std::shared_ptr<const RandomReader> content = added.open();
    if (content->size() != added.bytes) {
      throw Error(ErrorCode::kCorruption, "the file changed while it was copied")
          .in_file(content->name())
          .expected(added.bytes)
          .found(content->size());
    }
    copy(*content, to);
  }

  void finish_file(const Catalog& target, std::uint32_t file, const Checksums& checksums, FileWriter& to) override {
    if (file < first_) inner_->finish_file(target, file, checksums, to);
  }

 private:
  void copy(const RandomReader& from, FileWriter& to) const {
    const std::int64_t bytes = from.size();
    if (bytes > 0 && reflink_disk_ != nullptr && reflink_disk_->clone_range(from, 0, to, 0, bytes)) return;
    std::vector<std::byte> block;
    for (std::int64_t at = 0; at < bytes; at += kBlock) {
      block.resize(static_cast<std::size_t>(std::min(kBlock, bytes - at)));
      from.read_at(at, block);
      to.write_at(at, block);
    }
  }

  std::unique_ptr<Writer> inner_;
  std::vector<AddedFile> files_;
  LocalDisk* reflink_disk_;
  std::uint32_t first_ = 0;  ///< Number of the first added file in the target.
};

/// Whether a file is OLMo-core's config.json, which has the Python classes of its parts, and no config of a model of
/// Hugging Face's.
bool is_of_olmo_core(const SourceStore& store, const std::string& path) {
  return base_name(path) == kConfigName &&
         whole_text(*store.open(path), kMaxConfigBytes).find("\"_CLASS_\"") != std::string::npos;
}

bool has_config(const SourceStore& store, const std::string& folder) {
  return store.is_file(join_path(folder, kConfigName));
}

/// The only folder in `folder` whose name begins so; empty if there is none or several.
std::string only_folder(const SourceStore& store, const std::string& folder, std::string_view begin) {
  std::string found;
  for (const std::string& name : store.list(folder)) {
    const std::string path = join_path(folder, name);
    if (!name.starts_with(begin) || !store.is_folder(path)) continue;
    if (!found.empty()) return {};
    found = path;
  }
  return found;
}

/// The folder with a config.json that the user of a path without one probably meant; empty without a good guess.
std::string meant_reference(const SourceStore& store, std::string path) {
  if (store.is_file(path)) return has_config(store, parent_path(path)) ? parent_path(path) : std::string();
  if (!store.is_folder(path)) return {};
  if (const std::string model = only_folder(store, path, "models--"); !model.empty()) path = model;
  const std::string snapshots = join_path(path, "snapshots"), branch = join_path(path, "refs/main");
  if (!store.is_folder(snapshots)) return {};
  const std::string meant = store.is_file(branch) ? join_path(snapshots, whole_text(*store.open(branch), kMostRefBytes))
                                                  : only_folder(store, snapshots, "");
  return !meant.empty() && has_config(store, meant) ? meant : std::string();
}

}  // namespace

std::string config_of_reference(const SourceStore& store, const std::string& reference) {
  const std::string path = join_path(reference, kConfigName);
  if (has_config(store, reference)) return path;
  throw Error(ErrorCode::kNotFound, fmt::format("the reference {} has no config.json", reference))
      .in_file(path)
      .suggest(Remedy::kNameReference, meant_reference(store, reference));
}

FilesFolder find_model_folder(const SourceStore& store, const std::string& source, const std::string& named,
                              const char* name) {
  for (const FilesFolder& folder : folders_of(store, source, named)) {
    const std::string path = join_path(folder.path, name);
    if (store.is_file(path) && !is_of_olmo_core(store, path)) return folder;
    const std::string beside = join_path(folder.path, kBeside);
    if (!store.is_file(join_path(beside, name))) continue;
    store.open_below(folder.path, join_path(kBeside, name));  // Refuses a link that leads out of the folder.
    return {beside, folder.is_above};
  }
  return {};
}

ModelConfig read_model_config(const SourceStore& store, const std::string& folder) {
  const std::string path = config_of_reference(store, folder);
  const std::string text = whole_text(*store.open_below(folder, kConfigName), kMaxConfigBytes);
  JsonCursor json(text.data(), text.data() + text.size(), path, FindingKind::kBadHeader);
  json.take_python_numbers();
  const RawConfig raw = read_object(json);
  json.finish();
  ModelConfig config{.ties_embeddings = raw.ties == "true",
                     .states_ties = !raw.ties.empty(),
                     .type = raw.type,
                     .dtype = raw.dtype,
                     .is_diffusers = !raw.class_name.empty()};
  if (config.dtype.starts_with("torch.")) config.dtype.erase(0, std::string_view("torch.").size());
  return config;
}

FolderFiles model_files(const SourceStore& store, const FilesFolder& folder, FilesOf what, bool takes_modules) {
  FolderFiles files;
  const std::vector<std::string> names = store.list(folder.path);
  for (const std::string& name : names) {
    const bool is_adapters = name == kAdapterConfigName;
    const bool is_models = name == kConfigName || name == "generation_config.json" || name.ends_with(kCode);
    const bool is_other = what == FilesOf::kModel ? is_adapters : is_models;
    if (is_other || !(is_adapters || is_model_file(name)) || !store.is_file(join_path(folder.path, name))) continue;
    if (!is_plain_name(name)) {
      files.odd_names.push_back(name);
    } else if (name.ends_with(kCode) && folder.is_above) {
      files.code_above.push_back(name);
    } else {
      files.names.push_back(name);
      if (name.ends_with(kCode)) files.code.push_back(name);
    }
  }
  if (what == FilesOf::kModel) add_modules(store, folder.path, names, takes_modules, files);
  add_templates(store, folder.path, files);
  std::ranges::sort(files.names);
  return files;
}

std::vector<std::string> reference_files(const SourceStore& store, const std::string& folder) {
  std::vector<std::string> paths;
  for (const std::string& name : store.list(folder)) {
    const std::string path = join_path(folder, name);
    if (store.is_file(path) || name == kTemplates) paths.push_back(path);
  }
  return paths;
}

AddedFile added_file(const SourceStore& store, const std::string& folder, const std::string& name) {
  return {.path = name,
          .bytes = store.status(join_path(folder, name)).bytes,
          .open = [&store, folder, name]() -> std::shared_ptr<const RandomReader> {
            return store.open_below(folder, name);
          }};
}

CarriedFiles carried_files(const SourceStore& store, const FilesFolder& folder, FilesOf what, bool takes_modules,
                           bool holds_files) {
  CarriedFiles carried;
  if (folder.path.empty()) return carried;
  carried.listed = model_files(store, folder, what, takes_modules);
  const std::vector<std::string>& names = carried.listed.names;
  if (names.size() > kMostFiles) {
    throw Error(ErrorCode::kUnsupported, fmt::format("cannot copy the {} files beside the weights", names.size()))
        .in_file(folder.path)
        .because(
            fmt::format("that is more than {}, most of them Python modules, templates or tables of tokens", kMostFiles))
        .hint("copy those that the model needs into another folder")
        .suggest(Remedy::kNameReference);
  }
  for (const std::string& name : names) {
    AddedFile file = added_file(store, folder.path, name);
    if (holds_files) {
      const std::shared_ptr<const RandomReader> content = file.open();
      file.open = [held = std::make_shared<HeldFile>(read_whole(*content, kMostHeld), content->name())] {
        return held;
      };
    }
    carried.files.push_back(std::move(file));
    carried.paths.push_back(join_path(folder.path, name));
  }
  return carried;
}

std::unique_ptr<Writer> with_added_files(std::unique_ptr<Writer> inner, std::vector<AddedFile> files,
                                         LocalDisk* reflink_disk) {
  return std::make_unique<AddingWriter>(std::move(inner), std::move(files), reflink_disk);
}

std::shared_ptr<const RandomReader> held_in_memory(std::string_view text, const std::string& name) {
  const auto bytes = std::as_bytes(std::span(text));
  return std::make_shared<HeldFile>(std::vector<std::byte>(bytes.begin(), bytes.end()), name);
}

}  // namespace shard
