/// \file ComputedReader: tensors that are computed as they are read, by formulas over tensors of other sources.
///
/// Each formula adds a tensor with one storage that is not plain. These storages follow those of the first reader. Its
/// bytes are computed when they are read (Reader::bytes_of), so selection, planner, writers, ranks and verbs treat it
/// like any other tensor. It is sharded like its first operand, if that operand's boxes are boxes of the tensor.
/// Nothing is computed twice if ranges are read in order.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "libshard/checkpoint/reader.h"
#include "libshard/compute/formula.h"
#include "libshard/core/findings.h"

namespace shard {

class ComputedReader final : public Reader {
 public:
  /// The tensors of the first reader that are not dropped, as they are, and those of the formulas. The files of the
  /// other readers follow those of the first. One that lists no files reads those of the reader before it. Objects are
  /// those of the first that `computation` keeps, in its container tree if each tensor has its name there.
  /// \pre there is a reader
  /// \throws Error kCorruption  a name occurs twice; the computed tensors are out of proportion to the files
  /// \throws Error kUnsupported  ranks have different values of an operand
  ComputedReader(std::vector<std::unique_ptr<Reader>> readers, Computation computation);

  const std::vector<Formula>& formulas() const { return formulas_; }
  Reader& first_reader() const { return *readers_.front(); }
  /// Whether a storage is that of a formula.
  bool computes(std::uint32_t storage) const {
    return storage >= first_storage_ && storage - first_storage_ < formulas_.size();
  }
  /// The values of a computed storage in float32, before they are rounded to the dtype of the tensor. Otherwise as
  /// bytes_of.
  std::shared_ptr<const RandomReader> unrounded_bytes_of(std::uint32_t storage) const;
  /// The files of a formula's operands. The first is that of its codes. They may repeat.
  std::vector<std::uint32_t> files_of(std::size_t formula) const;
  /// Marks the storages of formulas as lost if one of an operand's storages is. \pre there is one reader
  void lose_with_operands(Findings& findings) const;

  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t> tensors) override;
  void load_objects() override;
  std::int64_t unread_object_bytes() const override { return readers_.front()->unread_object_bytes(); }
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override;
  bool check_container(std::uint32_t file, ContainerReport& report) const override;
  /// Threads: each call returns a view with its own memory, at most 16 MiB beside scales; users of one take turns.
  std::shared_ptr<const RandomReader> bytes_of(std::uint32_t storage) const override;

 private:
  void add_formula(const Formula& formula, std::uint32_t number);
  void add_tensor(const Formula& formula, const std::string& name, std::uint32_t storage, std::uint32_t number);
  void take_objects();
  void take_tree();
  void check(const Formula& formula) const;
  void take_stored();
  std::size_t reader_of(std::uint32_t file) const;

  std::vector<std::unique_ptr<Reader>> readers_;
  std::vector<Formula> formulas_;
  std::function<bool(const Object& object)> keeps_object_;
  Catalog catalog_;
  std::vector<std::uint32_t> first_file_;  ///< By reader.
  std::uint32_t first_storage_ = 0;        ///< The first storage of a formula.
  std::vector<std::uint32_t> inner_;       ///< By tensor: its index in the first reader, or kNoIndex.
  std::vector<std::uint32_t> formula_;     ///< By tensor: its formula, or kNoIndex.
};

/// The readers that compute tensors of one reader, which consists of them. Their storages have the same numbers there.
using ComputedReaders = std::vector<const ComputedReader*>;

}  // namespace shard
