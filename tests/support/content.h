/// \file
/// Checkpoints as plain content, for tests. Independent of format and layout.
#pragma once

#include <cstddef>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "formats/registry.h"
#include "libshard/io/local_disk.h"
#include "libshard/job/copy_job.h"
#include "libshard/ranks/group.h"
#include "tests/support/memory_disk.h"

namespace shard::testing {

struct ContentTensor {
  DType dtype{};
  std::vector<std::int64_t> shape;
  std::vector<std::byte> bytes;  ///< Row-major.
  friend bool operator==(const ContentTensor&, const ContentTensor&) = default;
};
using Content = std::map<std::string, ContentTensor>;

/// Random bytes of the right length (0 and 1 for bool).
ContentTensor random_tensor(std::mt19937_64& random, DType dtype, std::vector<std::int64_t> shape);
/// Up to `tensors` random tensors of up to 4 dimensions, each up to `most` long.
Content random_content(std::mt19937_64& random, int tensors, std::int64_t most, std::span<const DType> dtypes);

/// A reader of content: one row-major storage per tensor. Ownership: owns everything.
std::unique_ptr<Reader> content_reader(const Content& content);
/// The content of all of a reader's tensors.
Content read_content(Reader& reader);

struct WriteCheckpoint {
  std::string format;
  std::string destination;
  Layout layout = WholeLayout{};
  bool single_file = false;
  bool force = false;
  int threads = 1;
  std::int64_t max_memory_bytes = 64 << 20;
  std::optional<RankFiles> rank_files = std::nullopt;  ///< See WriteOptions.
  Topology topology{};                                 ///< See CopyJob.
  bool dry_run = false;
  Device* device = nullptr;      ///< See CopyJob.
  bool resume = false;           ///< Keeps a journal, and continues an existing one.
  Progress* progress = nullptr;  ///< The counter; null: none.
};
/// Runs a copy job from `reader`.
CopyResult write_checkpoint(LocalDisk& fs, Reader& reader, const WriteCheckpoint& what);
/// Does the same as a rank of a group. All ranks call it, each with a separate reader.
CopyResult write_checkpoint(LocalDisk& fs, Group& group, Reader& reader, const WriteCheckpoint& what);
/// Does the same into any output.
CopyResult write_checkpoint(OutputStore& output, Group& group, Reader& reader, const WriteCheckpoint& what,
                            LocalDisk* reflink_disk = nullptr);
/// Opens with `format`, or detects the format if it is empty.
std::unique_ptr<Reader> open_checkpoint(LocalDisk& fs, const std::string& path, const std::string& format = "");

}  // namespace shard::testing
