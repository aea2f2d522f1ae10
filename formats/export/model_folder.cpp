#include "formats/export/model_folder.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "formats/parts/json/json_cursor.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard {

namespace {

constexpr const char *kBeside = "huggingface", *kTemplates = "additional_chat_templates", *kModules = "modules.json";
constexpr std::string_view kCode = ".py";
/// Files of sentence-transformers beside modules.json, and the weights in the folders of its modules.
constexpr std::array<std::string_view, 3> kModuleNames{kModules, "sentence_bert_config.json",
                                                       "config_sentence_transformers.json"},
    kModuleWeights{"model.safetensors", "pytorch_model.bin", "sentence_embedding.bin"};
constexpr std::int64_t kMaxConfigBytes = 16 << 20;
constexpr std::array<std::string_view, 30> kNames{
    kConfigName,
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "tokenizer.model",
    "tokenizer.model.v3",
    "tekken.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "vocab.bpe",
    "merges.txt",
    "encoder.json",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
    "source.spm",
    "target.spm",
    "chat_template.jinja",
    "chat_template.json",
    "preprocessor_config.json",
    "processor_config.json",
    "video_preprocessor_config.json",
    "image_processor_config.json",
    "configuration.json",
    "hf_quant_config.json",
    "quantize_config.json",
    "quant_config.json",
    "quanto_qmap.json",
};
constexpr std::array<std::string_view, 3> kEnds{".py", ".tiktoken", ".jinja"};

bool is_file(const SourceStore& store, const std::string& path) { return store.status(path).kind == FileKind::kFile; }
bool is_folder(const SourceStore& store, const std::string& path) {
  return store.status(path).kind == FileKind::kFolder;
}

template <class List>
bool is_among(const List& list, std::string_view word) {
  return std::ranges::find(list, word) != list.end();
}

bool is_model_file(std::string_view name) {
  if (name.starts_with('.')) return false;
  return is_among(kNames, name) ||
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

bool is_letter_or_digit(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9'); }

/// Whether a name from the source may be used in the output. It may begin with '_', as __init__.py does.
bool is_plain_name(std::string_view name) {
  const auto is_plain_character = [](char c) {
    return is_letter_or_digit(c) || std::string_view("._+=-").find(c) != std::string_view::npos;
  };
  return !name.empty() && (is_letter_or_digit(name.front()) || name.front() == '_') &&
         std::ranges::all_of(name, is_plain_character);
}

/// "1_Pooling": the folder of a module of sentence-transformers.
bool is_module_folder(std::string_view name) {
  const std::size_t digits = name.find_first_not_of("0123456789");
  return digits != 0 && digits != std::string_view::npos && name[digits] == '_';
}

/// A value of a config as spelled in the text: `true`, `"bfloat16"`.
struct RawConfig {
  std::string ties, dtype, type, class_name;
};

RawConfig read_object(JsonCursor& json, std::string_view text) {
  RawConfig config, inner;
  json.enter_object();
  std::string_view key;
  for (bool is_first = true; json.next_key(key, is_first);) {
    const std::string_view name = key;
    const auto begin = static_cast<std::size_t>(json.position());
    if (name == "text_config" && text.find_first_not_of(" \t\r\n", begin) == text.find('{', begin)) {
      inner = read_object(json, text);
      continue;
    }
    json.skip();
    std::string value(text.substr(begin, static_cast<std::size_t>(json.position()) - begin));
    std::erase_if(value, [](char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n' || c == '"'; });
    if (name == "tie_word_embeddings") config.ties = value;
    if (name == "model_type") config.type = value;
    if (name == "_class_name") config.class_name = value;
    if ((name == "torch_dtype" || name == "dtype") && value != "null") config.dtype = value;
  }
  if (config.ties.empty()) config.ties = inner.ties;
  if (config.dtype.empty()) config.dtype = inner.dtype;
  return config;
}

/// The folder of `source`, and the folders above it up to `named`. If `named` is the folder of the source itself, the
/// one above it follows.
std::vector<FilesFolder> folders_of(const SourceStore& store, const std::string& source, const std::string& named) {
  std::vector<FilesFolder> folders;
  std::string at = is_folder(store, source) ? source : parent_path(source);
  folders.push_back({at});
  if (at == source && source == named) folders.push_back({parent_path(at), true});
  while (at != named && at.size() > named.size() && at.starts_with(named)) folders.push_back({at = parent_path(at)});
  return folders;
}

void add_templates(const SourceStore& store, const std::string& folder, FolderFiles& files) {
  const std::string templates = join_path(folder, kTemplates);
  if (!is_folder(store, templates)) return;
  for (const std::string& name : store.list(templates)) {
    if (!name.ends_with(".jinja") || !is_file(store, join_path(templates, name))) continue;
    (is_plain_name(name) ? files.names : files.odd_names).push_back(join_path(kTemplates, name));
  }
}

/// Adds the files of one module's folder.
void add_module(const SourceStore& store, const std::string& folder, const std::string& module, bool takes_weights,
                FolderFiles& files) {
  for (const std::string& name : store.list(join_path(folder, module))) {
    const std::string path = join_path(module, name);
    if (!is_file(store, join_path(folder, path)) || !is_plain_name(name)) continue;
    const bool is_weights = is_among(kModuleWeights, name);
    if (is_weights && !takes_weights) files.module_weights.push_back(path);
    const bool is_taken = is_weights ? takes_weights : is_model_file(name) && !name.ends_with(kCode);
    if (is_taken || is_among(kModuleNames, name)) files.names.push_back(path);
  }
}

/// Adds the folders of sentence-transformers' modules, and its own configuration.
void add_modules(const SourceStore& store, const std::string& folder, const std::vector<std::string>& names,
                 bool takes_weights, FolderFiles& files) {
  if (!is_among(names, kModules)) return;
  for (const std::string& name : names) {
    if (is_among(kModuleNames, name) && is_file(store, join_path(folder, name))) files.names.push_back(name);
    const bool is_module = is_module_folder(name) && is_plain_name(name) && is_folder(store, join_path(folder, name));
    if (is_module) add_module(store, folder, name, takes_weights, files);
  }
}

}  // namespace

FilesFolder find_model_folder(const SourceStore& store, const std::string& source, const std::string& named,
                              const char* name) {
  for (const FilesFolder& folder : folders_of(store, source, named)) {
    if (is_file(store, join_path(folder.path, name))) return folder;
    const std::string beside = join_path(folder.path, kBeside);
    if (!is_file(store, join_path(beside, name))) continue;
    store.open_below(folder.path, join_path(kBeside, name));  // Refuses a link that leads out of the folder.
    return {beside, folder.is_above};
  }
  return {};
}

ModelConfig read_model_config(const SourceStore& store, const std::string& folder) {
  const std::string path = join_path(folder, kConfigName);
  if (!is_file(store, path)) {
    throw Error(ErrorCode::kNotFound, "cannot read the model's config: no such file").in_file(path);
  }
  const std::vector<std::byte> bytes = read_whole(*store.open_below(folder, kConfigName), kMaxConfigBytes);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  JsonCursor json(text.data(), text.data() + text.size(), path, FindingKind::kBadHeader);
  json.take_python_numbers();
  const RawConfig raw = read_object(json, text);
  json.finish();
  ModelConfig config{.ties_embeddings = raw.ties == "true",
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
    if (is_other || !(is_adapters || is_model_file(name)) || !is_file(store, join_path(folder.path, name))) continue;
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
    if (is_file(store, path) || name == kTemplates) paths.push_back(path);
  }
  return paths;
}

}  // namespace shard
