// Prints the names and shapes of a checkpoint's tensors: the smallest use of the installed library.
#include <iostream>

#include "formats/detect.h"
#include "libshard/io/local_disk.h"

int main(int argc, char** argv) {
  if (argc != 2) return 2;
  try {
    const shard::Source source{&shard::posix_disk(), {argv[1]}};
    const std::unique_ptr<shard::Reader> reader = shard::detect_format(source).open(source, {});
    for (const shard::Tensor& tensor : reader->catalog().tensors) {
      std::cout << tensor.name;
      for (const std::int64_t n : tensor.shape) std::cout << ' ' << n;
      std::cout << '\n';
    }
    return 0;
  } catch (const shard::Error& e) {
    std::cerr << e.what() << '\n';
    return 1;
  }
}
