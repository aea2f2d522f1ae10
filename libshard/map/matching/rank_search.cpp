#include "libshard/map/matching/rank_search.h"

#include <fmt/format.h>
#include <re2/re2.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "libshard/catalog/selection/pattern_sets.h"
#include "libshard/core/error.h"
#include "libshard/core/parse_number.h"
#include "libshard/core/split.h"
#include "libshard/map/documents/wrong.h"
#include "libshard/map/matching/file_names.h"

namespace shard {

namespace {

using FieldValues = std::map<std::string, std::string>;  ///< Values by field. Numbers have no leading zeros.

/// A file whose name matches a template.
struct FittingFile {
  std::string path;
  FieldValues values;
};

std::int64_t number_of_field(const std::string& text) { return parse_number(text).value_or(0); }

class RankSearch {
 public:
  RankSearch(const MapDocument& document, const MapVariables& known, const ListFolder& list)
      : document_(document), known_(known), list_(list) {}

  std::optional<RankPaths> run() {
    for (const MapFiles& files : document_.files) {
      found_.emplace_back();
      walk(components_of(files.path), 0, {}, {});
    }
    const auto is_empty = [](const auto& files) { return files.empty(); };
    if (std::ranges::all_of(found_, is_empty)) return std::nullopt;
    check_variables();
    RankPaths paths{{}, find_mesh(), 1};
    for (const std::int64_t size : paths.mesh) paths.ranks *= size;
    for (std::size_t i = 0; i < found_.size(); ++i) add(i, paths);
    for (const RankPath& file : paths.files) paths.ranks = std::max(paths.ranks, file.rank + 1);
    // Names with {rank} do not show coordinates, so the mesh is still unknown.
    if (names_ranks_) paths.mesh.clear();
    std::ranges::stable_sort(paths.files, {}, &RankPath::rank);
    return paths;
  }

 private:
  static std::vector<NamePattern> components_of(const std::string& path) {
    std::vector<NamePattern> components;
    for (const std::string_view part : split(path, '/')) components.push_back(parse_file_name(std::string(part)));
    return components;
  }

  bool is_axis(const std::string& field) const {
    return std::ranges::find(document_.mesh, field, &MapMeshAxis::name) != document_.mesh.end();
  }
  bool is_number(const std::string& field) const { return is_axis(field) || field == kRankField; }
  /// Whether a name contains the rank. If an axis has the field's name, the field is a coordinate.
  bool has_rank(const FieldValues& values) const { return values.contains(kRankField) && !is_axis(kRankField); }

  /// A pattern for one component of the path. Axes and ranks are numbers. A variable is its known value, or any text if
  /// it is unknown.
  std::string pattern_of(const std::vector<NamePattern::Part>& parts) const {
    std::string pattern;
    for (const NamePattern::Part& part : parts) {
      pattern += RE2::QuoteMeta(part.text);
      if (part.field.empty()) continue;
      const MapValue* const value = is_number(part.field) ? nullptr : known_.find(part.field);
      pattern += is_number(part.field) ? "([0-9]{1,9})"
                 : value == nullptr    ? "(.+)"
                                       : fmt::format("({})", RE2::QuoteMeta(part.padded(text_of(*value))));
    }
    return pattern;
  }

  /// Adds the values of the fields in a name. \returns false if a field already has a different value, or different
  /// leading zeros
  bool take(const std::vector<NamePattern::Part>& parts, const std::vector<re2::StringPiece>& texts,
            FieldValues& values) const {
    for (std::size_t i = 0; i + 1 < texts.size(); ++i) {
      std::string text(texts[i + 1].data(), texts[i + 1].size());
      if (is_number(parts[i].field)) {
        const std::string number = std::to_string(number_of_field(text));
        if (parts[i].padded(number) != text) return false;
        text = number;
      }
      if (!values.try_emplace(parts[i].field, text).second && values[parts[i].field] != text) return false;
    }
    return true;
  }

  /// Lists the folders that match the path so far, one component per call. `values` are those of the components before.
  void walk(const std::vector<NamePattern>& components, std::size_t depth, const std::string& folder,
            const FieldValues& values) {
    const std::vector<NamePattern::Part>& parts = components[depth].parts();
    const RE2 pattern(pattern_of(parts), quiet_patterns());
    if (!pattern.ok()) throw wrong("files.path is too large");
    const auto fields = static_cast<std::size_t>(pattern.NumberOfCapturingGroups());
    for (const std::string& name : list_(folder)) {
      std::vector<re2::StringPiece> texts(fields + 1);
      FieldValues all = values;
      if (!pattern.Match(name, 0, name.size(), RE2::ANCHOR_BOTH, texts.data(), static_cast<int>(texts.size())) ||
          !take(parts, texts, all)) {
        continue;
      }
      const std::string path = folder.empty() ? name : folder + "/" + name;
      if (depth + 1 < components.size()) {
        walk(components, depth + 1, path, all);
      } else {
        found_.back().push_back({path, std::move(all)});
      }
    }
  }

  /// Checks that all files belong to one checkpoint.
  void check_variables() const {
    FieldValues first;
    for (const auto& files : found_) {
      for (const FittingFile& file : files) {
        for (const auto& [field, value] : file.values) {
          if (is_number(field) || first.try_emplace(field, value).second || first[field] == value) continue;
          throw wrong(fmt::format("cannot choose which files to read: their names have several values of '{}'", field))
              .in_file(file.path)
              .because(fmt::format("they have {} and {}", first[field], value))
              .suggest(Remedy::kStateVariable, field);
        }
      }
    }
  }

  /// The sizes of the mesh. An axis is as long as the highest coordinate in a name requires, or as the document states,
  /// if that is more.
  std::vector<std::int64_t> find_mesh() {
    std::vector<std::int64_t> mesh;
    for (const MapMeshAxis& axis : document_.mesh) {
      std::int64_t size = 0;
      for (const auto& files : found_) {
        for (const FittingFile& file : files) {
          const auto value = file.values.find(axis.name);
          if (value != file.values.end()) size = std::max(size, number_of_field(value->second) + 1);
          names_ranks_ = names_ranks_ || has_rank(file.values);
        }
      }
      mesh.push_back(std::max({size, stated_size(axis), std::int64_t{1}}));
    }
    std::int64_t all = 1;
    for (const std::int64_t size : mesh) {
      if (size > kMostRanks / all) {
        throw wrong("cannot use the source's files: their names imply too many ranks")
            .expected(fmt::format("at most {} ranks", kMostRanks))
            .found(size);
      }
      all *= size;
    }
    return mesh;
  }

  /// The size of the axis, or 0 if it depends on the content of the source.
  std::int64_t stated_size(const MapMeshAxis& axis) const try {
    return known_.evaluate(axis.size);
  } catch (const Error&) {
    return 0;
  }

  /// The coordinate on an axis that the names do not contain.
  std::int64_t writer_on(const MapFiles& files, std::size_t axis, std::int64_t size) const {
    const auto writer = std::ranges::find(files.writer, axis, &MapOn::axis);
    if (writer == files.writer.end() && size == 1) return 0;
    if (writer == files.writer.end() || writer->coordinates.size() != 1) {
      throw wrong(
          fmt::format("files.path '{}' lacks the axis '{}', and files.writer does not state its one coordinate there",
                      files.path, document_.mesh[axis].name));
    }
    const std::int64_t coordinate = writer->coordinates.front() + (writer->coordinates.front() < 0 ? size : 0);
    if (coordinate >= 0 && coordinate < size) return coordinate;
    throw wrong(fmt::format("files.writer names a coordinate that the axis '{}' lacks", document_.mesh[axis].name))
        .expected(fmt::format("0 to {}", size - 1))
        .found(writer->coordinates.front());
  }

  void add(std::size_t entry, RankPaths& paths) const {
    const MapFiles& files = document_.files[entry];
    check_all_there(files, found_[entry], paths.mesh);
    for (const FittingFile& file : found_[entry]) {
      RankPath path{file.path, 0, files.root};
      if (has_rank(file.values)) {
        path.rank = number_of_field(file.values.at(kRankField));
      } else {
        for (std::size_t axis = 0; axis < paths.mesh.size(); ++axis) {
          const auto value = file.values.find(document_.mesh[axis].name);
          const std::int64_t coordinate =
              value == file.values.end() ? writer_on(files, axis, paths.mesh[axis]) : number_of_field(value->second);
          path.rank = path.rank * paths.mesh[axis] + coordinate;
        }
      }
      paths.files.push_back(std::move(path));
    }
  }

  /// Checks that there is a file for each combination of the coordinates in its name. It looks for at most one more
  /// than exist, regardless of the mesh's size.
  void check_all_there(const MapFiles& files, const std::vector<FittingFile>& found,
                       const std::vector<std::int64_t>& mesh) const {
    const std::vector<NamePattern::Part> parts = parse_file_name(files.path).parts();
    std::set<std::string> there;
    for (const FittingFile& file : found) there.insert(file.path);
    FieldValues values;
    if (!found.empty()) values = found.front().values;
    std::vector<std::size_t> axes;
    for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
      const auto is_named = [&](const NamePattern::Part& part) { return part.field == document_.mesh[axis].name; };
      if (std::ranges::any_of(parts, is_named)) axes.push_back(axis);
    }
    std::int64_t combinations = 1;
    for (const std::size_t axis : axes) combinations *= mesh[axis];
    const bool by_rank = has_rank(values);
    if (by_rank) {
      combinations = 0;
      for (const FittingFile& file : found) {
        combinations = std::max(combinations, number_of_field(file.values.at(kRankField)) + 1);
      }
    }
    for (std::int64_t i = 0; i < std::min(combinations, std::ssize(found) + 1); ++i) {
      if (by_rank) values[kRankField] = std::to_string(i);
      std::int64_t rest = i;
      for (std::size_t k = axes.size(); k-- > 0 && !by_rank; rest /= mesh[axes[k]]) {
        values[document_.mesh[axes[k]].name] = std::to_string(rest % mesh[axes[k]]);
      }
      std::string path;
      for (const NamePattern::Part& part : parts) {
        path += part.text;
        if (!part.field.empty()) path += values.contains(part.field) ? part.padded(values[part.field]) : "*";
      }
      if (there.contains(path)) continue;
      throw Error(ErrorCode::kNotFound, fmt::format("the file '{}' of a rank is missing", path))
          .in_file(path)
          .of_kind(FindingKind::kMissingFile)
          .because(fmt::format("the map names {} such files, {} were found", combinations, found.size()));
    }
  }

  static constexpr std::int64_t kMostRanks = 1 << 20;

  const MapDocument& document_;
  const MapVariables& known_;
  const ListFolder& list_;
  std::vector<std::vector<FittingFile>> found_;  ///< By entry of the document's files.
  bool names_ranks_ = false;
};

}  // namespace

std::optional<RankPaths> find_rank_paths(const MapDocument& document, const MapVariables& known,
                                         const ListFolder& list) {
  if (document.files.empty()) return std::nullopt;
  return RankSearch(document, known, list).run();
}

}  // namespace shard
