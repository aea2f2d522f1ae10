#include "libshard/job/manifest_run.h"

#include <fmt/format.h>

#include <algorithm>

#include "libshard/core/error.h"
#include "libshard/core/parallel.h"
#include "libshard/ranks/wire.h"

namespace shard {

namespace {

constexpr std::int64_t kRead = 256 << 10;

/// A digest of names, dtypes, shapes and boxes.
std::string layout_digest(const Catalog& target) {
  Hasher hasher(HashAlgorithm::kXxh3_128);
  const auto add = [&](Dims numbers) { hasher.update(std::as_bytes(numbers.span())); };
  for (const Tensor& tensor : target.tensors) {
    hasher.update(tensor.name);
    hasher.update(dtype_name(tensor.dtype));
    add(tensor.shape);
    for (const Chunk& chunk : target.chunks_of(tensor)) {
      add(chunk.offsets);
      add(chunk.sizes);
      hasher.update(fmt::format(" {}", target.stored[chunk.stored].rank));
    }
  }
  return hasher.finish_hex();
}

/// The manifest, with zeros in place of its hashes.
Manifest draft_of(const ManifestRequest& request, const Catalog& target, const FilePlaces& places) {
  Manifest manifest{.tool = request.tool,
                    .algorithm = request.algorithm,
                    .format = target.format,
                    .world_size = target.world_size,
                    .tensors = std::ssize(target.tensors),
                    .objects = std::ssize(target.objects),
                    .chunks = std::ssize(target.chunks),
                    .layout = layout_digest(target),
                    .options = request.options,
                    .source = request.source,
                    .files = {}};
  for (std::size_t i = 0; i < target.files.size(); ++i) {
    const File& file = target.files[i];
    const auto blocks = static_cast<std::size_t>(block_count(file.bytes));
    manifest.files.push_back({file.path, file.bytes, std::string(blocks * hex_digits(request.algorithm), '0')});
    if (!places.empty()) manifest.files.back().rank = places[i];
  }
  return manifest;
}

/// Hashes a block of a file. `bytes` is the size of the whole file.
std::string hash_block(FileWriter& file, std::int64_t bytes, std::int64_t block, HashAlgorithm algorithm,
                       std::vector<std::byte>& buffer) {
  Hasher hasher(algorithm);
  const std::int64_t end = std::min(bytes, (block + 1) * kManifestBlock);
  for (std::int64_t at = block * kManifestBlock; at < end; at += kRead) {
    const auto piece = std::span(buffer).first(static_cast<std::size_t>(std::min(kRead, end - at)));
    file.read_back(at, piece);
    hasher.update(piece);
  }
  return hasher.finish_hex();
}

}  // namespace

File manifest_file(const ManifestRequest& request, bool is_folder, const Catalog& target, const FilePlaces& places) {
  const std::string path =
      is_folder ? std::string(kManifestName) : target.files.front().path + std::string(kManifestSuffix);
  return {path, std::ssize(manifest_text(draft_of(request, target, places))), -1};
}

BlockHashes& ManifestRun::hashes_of(std::uint32_t file) {
  if (hashes_[file] == nullptr) {
    hashes_[file] = std::make_unique<BlockHashes>(target_.files[file].bytes, request_.algorithm);
  }
  return *hashes_[file];
}

FileWriter& ManifestRun::hashing(std::uint32_t file, FileWriter& to) {
  writers_.push_back(std::make_unique<HashingWriter>(to, hashes_of(file)));
  return *writers_.back();
}

std::function<void(std::int64_t, std::span<const std::byte>)> ManifestRun::block_sink(std::uint32_t file) {
  return [&hashes = hashes_of(file), algorithm = request_.algorithm](std::int64_t block,
                                                                     std::span<const std::byte> bytes) {
    Hasher hasher(algorithm);
    hasher.update(bytes);
    hashes.set(block, hasher.finish_hex());
  };
}

/// The blocks that this rank hashed while it wrote, for rank 0.
Bytes ManifestRun::known_blocks() const {
  WireWriter known;
  for (std::size_t file = 0; file < hashes_.size(); ++file) {
    for (std::int64_t block = 0; hashes_[file] != nullptr && block < hashes_[file]->blocks(); ++block) {
      if (!hashes_[file]->is_known(block)) continue;
      known.number(static_cast<std::int64_t>(file));
      known.number(block);
      known.text(hashes_[file]->hash_of(block));
    }
  }
  return known.take();
}

void ManifestRun::take_known(const Bytes& message) {
  WireReader from(message);
  while (!from.at_end()) {
    const auto file = static_cast<std::uint32_t>(from.number_below(file_count()));
    const std::int64_t block = from.number_below(hashes_of(file).blocks());
    const std::string hash = from.text();
    if (hash.size() != hex_digits(request_.algorithm)) {
      throw Error(ErrorCode::kPeer, "cannot build the manifest: a rank sent a hash of a different length")
          .expected(fmt::format("{} digits", hex_digits(request_.algorithm)))
          .found(fmt::format("{}", hash.size()));
    }
    hashes_of(file).set(block, hash);
  }
}

/// Collects the known hashes on rank 0, and sends all ranks the list of missing blocks. Blocks that several ranks wrote
/// have no hash yet.
void ManifestRun::share(Group& group) {
  if (group.size() > 1) {
    for (const Bytes& message : gather(group, group.rank() == 0 ? Bytes() : known_blocks(), 0)) take_known(message);
  }
  WireWriter missing;
  for (std::uint32_t file = 0; group.rank() == 0 && file < file_count(); ++file) {
    const BlockHashes& known = hashes_of(file);
    for (std::int64_t block = 0; block < known.blocks(); ++block) {
      if (!known.is_known(block)) missing.number(file), missing.number(block);
    }
  }
  const Bytes all = broadcast(group, missing.take(), 0);
  WireReader from(all);
  while (!from.at_end()) {
    const auto file = static_cast<std::uint32_t>(from.number_below(file_count()));
    missing_.emplace_back(file, from.number());
  }
}

/// Hashes the missing blocks in the files that this rank owns.
void ManifestRun::read_back(std::span<FileWriter* const> files, const std::vector<int>& owners, int rank, int threads,
                            const std::stop_token& stop) {
  for (const Block& block : missing_) {
    if (owners[block.first] == rank) read_.emplace_back(block, std::string());
  }
  for_each_index(read_.size(), threads, stop, [&]() -> IndexWorker {
    return [&, buffer = std::vector<std::byte>(static_cast<std::size_t>(kRead))](std::size_t i) mutable {
      const auto& [file, block] = read_[i].first;
      read_[i].second = hash_block(*files[file], target_.files[file].bytes, block, request_.algorithm, buffer);
    };
  });
}

/// Collects the last hashes on rank 0, which creates the document and sends it to all ranks.
std::string ManifestRun::finish(Group& group) {
  WireWriter own;
  for (const auto& [block, hash] : read_) {
    own.number(block.first);
    own.number(block.second);
    own.text(hash);
  }
  for (const Bytes& message : gather(group, own.take(), 0)) take_known(message);
  Bytes text;
  if (group.rank() == 0) {
    Manifest manifest = draft_of(request_, target_, places_);
    for (std::uint32_t file = 0; file < file_count(); ++file) manifest.files[file].blocks = hashes_of(file).take();
    text = to_bytes(manifest_text(manifest));
  }
  return std::string(as_text(broadcast(group, text, 0)));
}

}  // namespace shard
