#include "apps/shardctl/model_folder.h"

#include <algorithm>
#include <array>
#include <string_view>

#include "formats/parts/json/json_cursor.h"
#include "libshard/core/error.h"
#include "libshard/io/paths.h"

namespace shard::app {
namespace {

constexpr const char *kBeside = "huggingface", *kTemplates = "additional_chat_templates";
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

bool is_model_file(std::string_view name) {
  if (name.starts_with('.')) return false;
  return std::ranges::find(kNames, name) != kNames.end() ||
         std::ranges::any_of(kEnds, [&](std::string_view end) { return name.ends_with(end); });
}

/// A value of a config as it stands in the text: `true`, `"bfloat16"`.
struct RawConfig {
  std::string ties, dtype, type;
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
    if ((name == "torch_dtype" || name == "dtype") && value != "null") config.dtype = value;
  }
  if (config.ties.empty()) config.ties = inner.ties;
  if (config.dtype.empty()) config.dtype = inner.dtype;
  return config;
}

/// The folder of `source`, and the folders above it up to `named`. Where `named` is the folder of the source itself,
/// also the one above it.
std::vector<std::string> folders_of(const SourceStore& store, const std::string& source, const std::string& named) {
  std::vector<std::string> folders;
  std::string at = is_folder(store, source) ? source : parent_path(source);
  folders.push_back(at);
  if (at == source && source == named) folders.push_back(parent_path(at));
  while (at != named && at.size() > named.size() && at.starts_with(named)) folders.push_back(at = parent_path(at));
  return folders;
}

}  // namespace

std::string find_model_folder(const SourceStore& store, const std::string& source, const std::string& named) {
  for (const std::string& folder : folders_of(store, source, named)) {
    for (const std::string& each : {folder, join_path(folder, kBeside)}) {
      if (is_file(store, join_path(each, kConfigName))) return each;
    }
  }
  return {};
}

ModelConfig read_model_config(const SourceStore& store, const std::string& folder) {
  const std::string path = join_path(folder, kConfigName);
  if (!is_file(store, path)) {
    throw Error(ErrorCode::kNotFound, "cannot read the model's configuration: there is no such file").in_file(path);
  }
  const std::vector<std::byte> bytes = read_whole(*store.open_below(folder, kConfigName), kMaxConfigBytes);
  const std::string text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  JsonCursor json(text.data(), text.data() + text.size(), path, FindingKind::kBadHeader);
  json.take_python_numbers();
  const RawConfig raw = read_object(json, text);
  json.finish();
  ModelConfig config{.ties_embeddings = raw.ties == "true", .type = raw.type, .dtype = raw.dtype};
  if (config.dtype.starts_with("torch.")) config.dtype.erase(0, std::string_view("torch.").size());
  return config;
}

std::vector<std::string> model_files(const SourceStore& store, const std::string& folder) {
  std::vector<std::string> files;
  for (const std::string& name : store.list(folder)) {
    if (is_model_file(name) && is_file(store, join_path(folder, name))) files.push_back(name);
  }
  const std::string templates = join_path(folder, kTemplates);
  if (!is_folder(store, templates)) return files;
  for (const std::string& name : store.list(templates)) {
    if (name.ends_with(".jinja") && is_file(store, join_path(templates, name))) {
      files.push_back(join_path(kTemplates, name));
    }
  }
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

}  // namespace shard::app
