// group_bench exchange BACKEND [MIB]: times the traffic of a group, compared with memcpy. Every rank sends MIB to every
// other rank.
// group_bench copy BACKEND SOURCE DESTINATION: gathers a safetensors folder into one file, timed from the formed group.
//
// BACKEND is threads:N, mpi, gloo or none; mpirun or torchrun starts processes. Prints the best of nine on rank 0.
// memcpy is measured in the same run, by all ranks at once, over the same number of bytes.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <string_view>

#include "formats/registry.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/local_output.h"
#include "libshard/io/posix_file.h"
#include "libshard/job/copy_job.h"
#include "libshard/ranks/open_group.h"
#include "libshard/ranks/thread_group.h"

namespace {

using namespace shard;

constexpr int kRuns = 9;

/// Seconds of `work` on the slowest rank: all start and end together.
template <class Work>
double seconds_of(Group& group, const Work& work) {
  group.barrier();
  const auto begin = std::chrono::steady_clock::now();
  work();
  group.barrier();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void exchange(Group& group, std::size_t bytes) {
  const auto ranks = static_cast<std::size_t>(group.size()), own = static_cast<std::size_t>(group.rank());
  const Bytes outgoing(bytes, std::byte{7});
  std::vector<Bytes> incoming(ranks, Bytes(bytes));
  std::vector<std::span<const std::byte>> to(ranks, outgoing);
  std::vector<std::span<std::byte>> from(incoming.begin(), incoming.end());
  to[own] = {};
  from[own] = {};
  double best_copy = 1e9, best_exchange = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    best_copy = std::min(best_copy, seconds_of(group, [&] {
                           for (const std::span<std::byte> piece : from) {
                             if (!piece.empty()) std::memcpy(piece.data(), outgoing.data(), piece.size());
                           }
                         }));
    best_exchange = std::min(best_exchange, seconds_of(group, [&] { group.exchange(to, from); }));
  }
  if (own != 0) return;
  const double moved = static_cast<double>(bytes * ranks * (ranks - 1)) / 1e9;
  fmt::print("{} {} ranks, {} MiB each: exchange {:.2f} GB/s, memcpy {:.2f} GB/s, ratio {:.2f}\n", group.backend(),
             ranks, bytes >> 20, moved / best_exchange, moved / best_copy, best_exchange / best_copy);
}

void copy(Group& group, const std::string& from, const std::string& to) {
  LocalDisk& fs = posix_disk();
  const Source source{&fs, {from}};
  const Format& format = format_named("safetensors");
  double best = 1e9;
  for (int run = 0; run < kRuns; ++run) {
    if (group.rank() == 0) std::filesystem::remove_all(to);
    group.barrier();
    const auto begin = std::chrono::steady_clock::now();
    const std::unique_ptr<Reader> reader = format.open(source, {});
    const WriteOptions options{.single_file = true};
    CopyJob job;
    job.reader = reader.get();
    job.target = selected_target(*reader, select(reader->catalog(), {}), WholeLayout{}, traits_of(format, options));
    job.make_writer = [&](const Catalog&) { return writer_of(format, options); };
    job.reflink_disk = &fs;
    job.threads = group.size() == 1 ? 2 : 1;
    Progress progress;
    const auto output = local_output(fs, to, {}, {.sync = false});
    run_copy_job(*output, group, job, progress, {});
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  if (group.rank() == 0) fmt::print("{} {} ranks: copy {:.4f} s\n", group.backend(), group.size(), best);
}

void run(Group& group, int argc, char** argv) {
  if (std::string_view(argv[1]) == "copy") return copy(group, argv[3], argv[4]);
  exchange(group, static_cast<std::size_t>(argc > 3 ? std::atoi(argv[3]) : 64) << 20);
}

}  // namespace

int main(int argc, char** argv) {
  try {
    const std::string_view backend = argc > 2 ? argv[2] : "none";
    const Launch launch = detect_launch({}, process_environment());
    if (backend.starts_with("threads:")) {
      run_as_threads(std::atoi(backend.substr(8).data()), [&](Group& group) { run(group, argc, argv); });
    } else if (launch.size > 1) {
      run(*open_group({launch, std::chrono::seconds(60)}, std::string(backend)), argc, argv);
    } else {
      run(solo_group(), argc, argv);
    }
  } catch (const Error& error) {
    fmt::print(stderr, "{}: {}\n", error.what(), error.why());
    return 1;
  }
}
