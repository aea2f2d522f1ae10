// copy_bench FOLDER [RUNS] [THREADS] [MIB]: times execute() and cp of the same bytes, interleaved, on real files.
//
// Cases: 4 row shards into one file; 4 column shards with rows of 256 B into one file; one file into 4 column shards.
// Inputs are hot; outputs are removed outside the timed region. Prints minima and their ratio; `cp again` is the
// control.
#include <fmt/format.h>

#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <random>

#include "libshard/exec/execute.h"
#include "libshard/io/file_writer.h"
#include "libshard/io/local_disk.h"
#include "libshard/io/paths.h"
#include "tests/support/memory_checkpoint.h"

namespace {

using namespace shard;
using testing::add_storage;
using testing::add_tensor;
using testing::MadeChunk;

class FilesReader : public Reader {
 public:
  FilesReader(const Catalog& catalog, const std::string& folder) : catalog_(catalog) {
    for (const File& file : catalog.files) files_.push_back(posix_disk().open(join_path(folder, file.path)));
  }
  const Catalog& catalog() const override { return catalog_; }
  void locate(std::span<const std::uint32_t>) override {}
  std::shared_ptr<const RandomReader> file(std::uint32_t index) const override { return files_[index]; }

 private:
  const Catalog& catalog_;
  std::vector<std::shared_ptr<const RandomReader>> files_;
};

/// A matrix sharded along `dim` into `parts`, each in a separate file after a header of 100 bytes.
Catalog matrix(std::int64_t rows, std::int64_t row_bytes, int dim, std::int64_t parts) {
  Catalog catalog;
  std::vector<MadeChunk> chunks;
  for (std::int64_t i = 0; i < parts; ++i) {
    const std::int64_t height = dim == 0 ? rows / parts : rows, width = dim == 1 ? row_bytes / parts : row_bytes;
    const auto file = static_cast<std::uint32_t>(i);
    const std::uint32_t storage = add_storage(catalog, file, height * width, 100);
    chunks.push_back({{dim == 0 ? i * height : 0, dim == 1 ? i * width : 0},
                      {height, width},
                      {width, 1},
                      0,
                      storage,
                      static_cast<int>(i)});
  }
  add_tensor(catalog, "w", DType::kUint8, {rows, row_bytes}, chunks);
  return catalog;
}

void write_random(const Catalog& catalog, const std::string& folder) {
  std::filesystem::create_directories(folder);
  std::mt19937_64 random(1);
  std::vector<std::uint64_t> block(1 << 17);
  for (auto& each : block) each = random();
  for (const File& file : catalog.files) {
    std::ofstream out(join_path(folder, file.path), std::ios::binary);
    for (std::int64_t left = file.bytes; left > 0; left -= 1 << 20) {
      out.write(reinterpret_cast<const char*>(block.data()), std::min<std::int64_t>(left, 1 << 20));
    }
  }
}

struct Counts {
  std::int64_t calls = 0;
  std::int64_t tile_bytes = 0;
};

Counts copy(const Catalog& source, const std::string& from, const Catalog& target, const std::string& to, int threads,
            std::int64_t memory) {
  const FilesReader reader(source, from);
  const Plan plan = plan_copies(source, target, {.max_memory_bytes = memory, .threads = threads});
  std::vector<std::unique_ptr<FileWriter>> owned;
  std::vector<FileWriter*> files;
  for (const File& file : target.files) {
    owned.push_back(posix_disk().create(join_path(to, file.path)));
    owned.back()->allocate(file.bytes);
    files.push_back(owned.back().get());
  }
  Progress progress;
  execute(plan, source, reader, target, files, {.threads = threads, .max_memory_bytes = memory}, progress);
  for (const auto& each : owned) each->close();
  return {progress.read_calls + progress.write_calls, plan.tile_bytes};
}

double seconds_of(const std::function<void()>& work) {
  const auto begin = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

void run_case(const char* name, const Catalog& source, const Catalog& target, const std::string& folder, int runs,
              int threads, std::int64_t memory) {
  const std::string from = join_path(folder, "from"), to = join_path(folder, "to");
  write_random(source, from);
  Counts counts;
  const std::string cp = "cp " + from + "/* " + to + "/";
  const auto run_cp = [&] {
    if (std::system(cp.c_str()) != 0) std::abort();
  };
  const std::map<std::string, std::function<void()>> contenders = {
      {"cp", run_cp}, {"cp again", run_cp}, {"shard", [&] {
                                               counts = copy(source, from, target, to, threads, memory);
                                             }}};
  std::vector<std::string> order;
  std::map<std::string, double> least;
  for (const auto& each : contenders) order.push_back(each.first), least[each.first] = 1e9;
  std::mt19937_64 random(2);
  for (int run = 0; run < runs; ++run) {
    std::shuffle(order.begin(), order.end(), random);
    for (const std::string& each : order) {
      std::filesystem::remove_all(to);
      std::filesystem::create_directories(to);
      least[each] = std::min(least[each], seconds_of(contenders.at(each)));
    }
  }
  const double gigabytes = static_cast<double>(source.tensors[0].shape[0] * source.tensors[0].shape[1]) / 1e9;
  fmt::print("{:<24} cp {:.3f} s (control {:.2f})  shard {:.3f} s  x cp {:.2f}  {:.0f} calls/GB  tile {} KiB\n", name,
             least["cp"], least["cp again"] / least["cp"], least["shard"],
             least["shard"] / std::min(least["cp"], least["cp again"]), static_cast<double>(counts.calls) / gigabytes,
             counts.tile_bytes >> 10);
  std::filesystem::remove_all(folder);
}

/// A thousand tensors of a thousand row shards each, planned for 8 shards.
void time_planning() {
  Catalog source = matrix(1, 1, 0, 1), target = source;
  source.tensors.clear(), target.tensors.clear();
  const auto add = [](Catalog& catalog, std::int64_t parts) {
    for (int i = 0; i < 1000; ++i) {
      std::vector<MadeChunk> chunks;
      for (std::int64_t part = 0; part < parts; ++part) {
        const std::int64_t rows = 4000 / parts;
        const std::uint32_t storage = add_storage(catalog, static_cast<std::uint32_t>(part), rows * 64);
        chunks.push_back({{part * rows, 0}, {rows, 64}, {64, 1}, 0, storage, static_cast<int>(part)});
      }
      add_tensor(catalog, fmt::format("t{}", i), DType::kUint8, {4000, 64}, chunks);
    }
  };
  add(source, 1000);
  add(target, 8);
  const double seconds = seconds_of([&] { plan_copies(source, target, {.threads = 2}); });
  fmt::print("plan of {} chunks: {:.3f} s\n", source.chunks.size() + target.chunks.size(), seconds);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const std::string folder = join_path(argv[1], "copy_bench");
  const int runs = argc > 2 ? std::atoi(argv[2]) : 8, threads = argc > 3 ? std::atoi(argv[3]) : 2;
  const std::int64_t size = (argc > 4 ? std::atoll(argv[4]) : 1024) << 20, memory = 64 << 20;
  const auto rows = [&](std::int64_t row_bytes) { return size / row_bytes; };
  run_case("gather 4 row shards", matrix(rows(8192), 8192, 0, 4), matrix(rows(8192), 8192, 0, 1), folder, runs, threads,
           memory);
  run_case("split into 4 row shards", matrix(rows(8192), 8192, 0, 1), matrix(rows(8192), 8192, 0, 4), folder, runs,
           threads, memory);
  run_case("reshard 4 to 6 rows", matrix(rows(8192) / 6 * 6, 8192, 0, 4), matrix(rows(8192) / 6 * 6, 8192, 0, 6),
           folder, runs, threads, memory);
  for (const std::int64_t piece : {256, 2048}) {
    const Catalog whole = matrix(rows(4 * piece), 4 * piece, 0, 1), columns = matrix(rows(4 * piece), 4 * piece, 1, 4);
    run_case(fmt::format("gather pieces of {} B", piece).c_str(), columns, whole, folder, runs, threads, memory);
    run_case(fmt::format("split to pieces of {} B", piece).c_str(), whole, columns, folder, runs, threads, memory);
  }
  time_planning();
  return 0;
}
