#include "formats/zip/inflate.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <memory>

#include "libshard/core/error.h"

namespace shard::zip {
namespace {

constexpr std::size_t kStep = 1 << 20;

struct Inflater {
  z_stream stream{};
  Inflater() {
    if (inflateInit2(&stream, -MAX_WBITS) != Z_OK) throw Error(ErrorCode::kResource, "no memory to inflate a record");
  }
  ~Inflater() { inflateEnd(&stream); }
  Inflater(const Inflater&) = delete;
  Inflater& operator=(const Inflater&) = delete;
};

}  // namespace

std::vector<std::byte> inflate(std::span<const std::byte> data, std::int64_t bytes, std::string_view record,
                               std::string_view file) {
  Inflater inflater;
  z_stream& stream = inflater.stream;
  std::vector<std::byte> out;
  std::size_t produced = 0;
  int status = Z_OK;
  // zlib counts in 32 bits, so input and output go through in steps; one byte of room past `bytes` shows an excess.
  while (status == Z_OK && produced <= static_cast<std::size_t>(bytes)) {
    if (stream.avail_in == 0 && !data.empty()) {
      const std::size_t step = std::min(data.size(), kStep);
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(data.data()));
      stream.avail_in = static_cast<uInt>(step);
      data = data.subspan(step);
    }
    out.resize(std::min(static_cast<std::size_t>(bytes) + 1, produced + kStep));
    stream.next_out = reinterpret_cast<Bytef*>(out.data() + produced);
    stream.avail_out = static_cast<uInt>(out.size() - produced);
    const uInt room = stream.avail_out;
    status = ::inflate(&stream, Z_NO_FLUSH);
    produced += room - stream.avail_out;
  }
  if (status != Z_STREAM_END || produced != static_cast<std::size_t>(bytes) || stream.avail_in != 0 || !data.empty()) {
    throw Error(ErrorCode::kCorruption, fmt::format("zip: record '{}' does not inflate to its size", record))
        .in_file(file)
        .of_kind("bad_header")
        .expected(bytes)
        .found(static_cast<std::int64_t>(produced));
  }
  out.resize(produced);
  return out;
}

}  // namespace shard::zip
