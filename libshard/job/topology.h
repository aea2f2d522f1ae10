/// \file
/// Topology: the ranks that read the source and write the output of a job, and the places that they write to.
#pragma once

#include <cstdint>
#include <stop_token>
#include <string>
#include <vector>

#include "libshard/catalog/catalog.h"
#include "libshard/io/output.h"
#include "libshard/job/group_store.h"
#include "libshard/ranks/group.h"

namespace shard {

/// Assigns reading and writing to ranks. Equal on all ranks except for the contents of `peer_store`.
///
/// By default all ranks see all files of the source, write to one place, and copy equal shares of everything.
struct Topology {
  /// Each rank copies the data in the source's files of its own rank (File::rank). Other ranks need not be able to read
  /// these files.
  bool by_owner = false;
  /// The store from which the reader was opened, if each rank sees only its own files of the source. Each rank then
  /// reads its own files. Null: all ranks see all files.
  GroupStore* peer_store = nullptr;
  /// Each rank writes the files that it owns to its own place, and writes to no other place. With `peer_store`, ranks
  /// send the data that they read for others.
  bool own_places = false;
  /// Each rank writes the files that it owns, or its share of a file, all to one place, because files and shares there
  /// have one writer (OutputTraits::whole_files).
  bool whole_files = false;

  /// True if a rank's plan fills only the files and shares that it owns.
  bool fills_own_files() const { return own_places || whole_files; }
  /// True if a rank's plan contains its own copies only.
  bool plans_differ() const { return by_owner || peer_store != nullptr || fills_own_files(); }
  /// True if a job's numbers are sums over the ranks' plans.
  bool sums_plans() const { return peer_store != nullptr || fills_own_files(); }
  /// True if ranks read for one another.
  bool exchanges() const { return peer_store != nullptr && fills_own_files(); }
  /// The part of a rank's memory for tiles. The rest is for pieces in transit. \throws Error kInvalidArgument
  std::int64_t copy_memory(std::int64_t rank_bytes) const;
  /// The memory that a rank needs so that tiles may take `copy_bytes`.
  std::int64_t rank_memory(std::int64_t copy_bytes) const;
  /// The text that journals store for this topology.
  std::string text(int ranks) const;
};

/// The places to which ranks write: one for all ranks, one per rank, or one per group of ranks that share a folder.
struct OutputPlaces {
  std::vector<int> roots;  ///< By rank: the lowest rank of its place, which creates and commits the output.
  bool is_one = true;      ///< All ranks write to one place. Otherwise no rank writes to another's files.

  bool is_root(int rank) const { return root(rank) == rank; }
  int root(int rank) const { return roots[static_cast<std::size_t>(rank)]; }
  /// The token of this rank's place, which its root created. Collective. \throws Error kPeer
  Bytes share_token(Group& group, const Bytes& own) const;
  /// Waits a few seconds for the roots to remove a failed output, because mpirun kills all ranks when one exits.
  /// Collective. \throws Error kPeer
  void await_clean_up(Group& group) const;
};

/// One place for all ranks, regardless of their stores.
OutputPlaces one_place(int ranks);
/// A place for each value of OutputStore::place. A collective step. \throws Error kResource, kPeer
OutputPlaces find_places(Group& group, const OutputStore& store, const std::stop_token& stop);

/// The number of bytes that a place needs, and the number that it has.
struct PlaceSpace {
  int root = 0;
  std::int64_t needed_bytes = 0, free_bytes = 0;
};
/// The space of all places, in rising order of roots. `owners`: of the files. Collective. \throws Error kPeer
std::vector<PlaceSpace> find_space(Group& group, const OutputPlaces& places, const std::vector<File>& files,
                                   const std::vector<int>& owners, std::int64_t own_free_bytes);

/// The owner of each file, among `ranks` ranks that share the work: the rank that creates it and writes its headers,
/// frames and ends. Pure. The file of rank r of T in the checkpoint belongs to rank floor(r * ranks / T). File i of F
/// files with whole tensors belongs to rank floor(i * ranks / F). Metadata and indexes belong to rank 0.
/// \pre ranks >= 1; every File::rank is less than its world size
std::vector<int> file_owners(const Catalog& catalog, int ranks);

}  // namespace shard
