/// \file
/// The decisions of an export: which tensors of a checkpoint belong to the model, their names and dtypes in the output,
/// and the files that accompany them.
///
/// A copy job does the rest. Steps, in this order: find_files, find_part, take, model_reader, select, adjust,
/// add_files.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "formats/export/model_folder.h"
#include "formats/export/taken_source.h"
#include "libshard/catalog/quantized.h"
#include "libshard/catalog/selection/selection.h"
#include "libshard/checkpoint/reader.h"
#include "libshard/checkpoint/writer.h"
#include "libshard/core/short_text.h"
#include "libshard/export/model_part.h"
#include "libshard/export/reference_check.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/source_store.h"

namespace shard {

inline constexpr std::string_view kKeepDtypes = "keep", kAutoDtypes = "auto";

struct ExportOptions {
  std::string reference;           ///< Folder with the model's config and tokenizer; empty: looked for near the source.
  std::string dtype{kKeepDtypes};  ///< kKeepDtypes, kAutoDtypes (as the reference's config states) or a dtype's name.
  std::vector<std::string> cast;   ///< Rules "GLOB=DTYPE" that precede `dtype`.
  bool is_checked = true;          ///< Compare names and shapes with the reference's weights.
  SelectionOptions names;          ///< `include` and `exclude`, on the source's names.
  std::optional<DType> dequantized{};  ///< The source's weights were computed in this dtype.
  bool is_mapped = false;              ///< A model map is undone on the model's tensors, so their names differ.
  bool holds_files = false;            ///< See carried_files.
  std::int64_t max_memory_bytes = 64 << 20;
  std::size_t most_renames = 16;  ///< The largest number of renames in the report.
};

/// Tensors whose dtype kAutoDtypes does not change.
struct LeftByAuto {
  std::int64_t quantized_tensors = 0;
  FirstNames modules;  ///< Names of quantized modules.
  FirstNames scaled;   ///< Tensors of dtypes that need scales.
  FirstNames wider;    ///< Tensors that stay wider than `wanted`, as in the model.
  std::string wanted;  ///< The config's dtype.
};

/// Findings and decisions of an export.
struct ExportReport {
  std::string found;        ///< The source that was taken; files of ranks as a pattern.
  std::string container;    ///< The container of the model's tensors in it; empty: none.
  std::string reference;    ///< The folder of config and tokenizer; empty: none.
  bool is_checked = false;  ///< Whether names and shapes were compared with the reference's.
  /// Weights of the reference that are not a safetensors file, so nothing was compared with them; empty: none.
  std::string unread_weights{};
  std::int64_t renamed = 0;
  /// The first few pairs of the source's name and the resulting one.
  std::vector<std::pair<std::string, std::string>> renames{};
  std::int64_t other_tensors = 0, objects = 0;  ///< The numbers of skipped tensors and objects.
  /// Skipped, because a different tensor has the same values.
  std::vector<std::string> tied{};
  std::vector<std::string> copied{};  ///< Copied files, by their names in the output.
  std::optional<LeftByAuto> left_by_auto{};
  std::string stem{};                     ///< Prefix of the names of weight files; empty: the format's usual one.
  std::vector<std::string> read_paths{};  ///< Files that are read beside the source; no output may replace them.
};

/// Files of the source's folders that are neither read nor copied.
struct LeftBehind {
  std::vector<std::string> weights;  ///< Weights in the source's folder that the warnings of its reader do not name.
  std::vector<std::vector<std::string>> others;  ///< Other names, one list for each folder with any.
};

/// One export. Threads: one.
class ModelExport {
 public:
  /// Ownership: the store must outlive it, and the writers that it makes.
  ModelExport(const SourceStore& store, ExportOptions options) : store_(store), options_(std::move(options)) {}

  /// Finds the files that belong to the model `taken`: searches near it, up to `named`, the path that the user gave.
  /// \throws Error kCorruption  config.json is not JSON
  void find_files(TakenSource taken, const std::string& named);
  const TakenSource& source() const { return taken_; }
  /// The folder with the model's config.json; empty: none was found, or it has only an adapter's.
  const std::string& reference() const { return reference_; }
  const FilesFolder& folder() const {
    return folder_;
  }  ///< Folder of the model's files; that of an adapter's files only if it has no model's.
  const FilesFolder& adapter_folder() const { return adapter_folder_; }
  const ModelConfig& config() const { return config_; }
  /// Whether the files of the model state that it is quantized, although all tensors of `part` have dtypes of plain
  /// weights. Loaders would look for codes and scales. \pre take was called
  bool lacks_codes(const Catalog& catalog, const ModelPart& part) const;
  /// Files that affect the output and are neither the source's nor directly in the reference.
  const std::vector<std::string>& beside() const { return beside_; }

  /// A predicate that is true for names of the source selected by `names`.
  std::function<bool(std::string_view)> chosen_names() const { return name_filter(options_.names); }

  /// The model's part of the checkpoint. Opens the reference's weights. The result may have several models: its
  /// `choices`, or several `adapters`. \pre find_files was called. \throws Error  see find_model
  ModelPart find_part(const Catalog& catalog);
  /// Selects the files to copy. \pre `part` is one model \throws Error  see carried_files
  void take(const Catalog& catalog, const ModelPart& part);
  /// Files of the model's folder, copied or not. \pre take was called
  const FolderFiles& listed_files() const { return carried_.listed; }
  /// Checks the folder of the weights, and that of the configuration if the source is inside it. \pre take was called
  LeftBehind left_behind(const Catalog& source) const;

  /// Removes tied weights and states that a map has named from the selection, and sets dtypes.
  /// \returns the differences of the rest from the reference's weights; empty if they are not compared
  /// \throws Error kCorruption  no tensor remains, or tensors that config.json ties differ; kInvalidArgument
  ///   kAutoDtypes without a dtype in the config
  ReferenceDifference adjust(Reader& source, Selection& selection);
  /// Names that the model may lack although the reference has them. \pre adjust was called
  std::set<std::string> may_lack() const;
  const Catalog* reference_weights() const;  ///< Null if there are none to compare with.
  /// The error for a difference that `adjust` returned.
  Error mismatch(const ReferenceDifference& difference) const;

  /// A writer that also writes the files of the model. `reflink_disk`: see with_added_files.
  std::unique_ptr<Writer> add_files(std::unique_ptr<Writer> writer, LocalDisk* reflink_disk) const;

  const ExportReport& report() const { return report_; }

 private:
  void state_plain_weights(DType dtype);
  void find_reference();
  ModelHints hints() const;
  std::unique_ptr<Reader> open_reference();
  void drop_tied(Reader& source, Selection& selection, const Catalog* reference);
  void change_dtypes(const Catalog& source, Selection& selection);

  const SourceStore& store_;
  const ExportOptions options_;
  TakenSource taken_;
  FilesFolder folder_, adapter_folder_;
  bool has_own_reference_ = false;  ///< The folder was found near the source, because the user named none.
  std::string reference_;
  ModelConfig config_;
  QuantizationFacts facts_;  ///< From the files of the reference.
  std::unique_ptr<Reader> reference_weights_;
  bool is_adapter_ = false;
  ExportReport report_;
  std::vector<std::string> beside_;
  CarriedFiles carried_;
};

}  // namespace shard
