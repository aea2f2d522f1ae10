#include "formats/hdf5/chunk_filters.h"

#include <fmt/format.h>
#include <isa-l/igzip_lib.h>
#include <zlib.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>

#include "formats/parts/decoded_view/lzf_stream.h"
#include "libshard/core/checked.h"
#include "libshard/core/error.h"

namespace shard::hdf5 {

namespace {

static_assert(std::endian::native == std::endian::little);

Error damaged(std::string_view shown, std::string_view why, FindingKind kind = FindingKind::kBadHeader) {
  return Error(ErrorCode::kCorruption, fmt::format("cannot decode {}", shown)).because(why).of_kind(kind);
}

/// The largest size of a compressed stream of `bytes` bytes. HDF5 allows zlib a thousandth more than the bytes, and LZF
/// needs a 32nd more for bytes without repetitions.
std::int64_t longest_stream(std::int64_t bytes) { return checked_add(bytes, bytes / 32 + 4096); }

/// Fast decoder for valid streams. \returns whether the whole stream decodes to exactly `out` and its Adler-32 matches.
bool inflate_fast(std::span<const std::byte> stream, std::span<std::byte> out) {
  const auto state = std::make_unique_for_overwrite<inflate_state>();
  isal_inflate_init(state.get());
  state->crc_flag = ISAL_ZLIB;
  state->next_in = reinterpret_cast<std::uint8_t*>(const_cast<std::byte*>(stream.data()));
  state->avail_in = static_cast<std::uint32_t>(stream.size());
  state->next_out = reinterpret_cast<std::uint8_t*>(out.data());
  state->avail_out = static_cast<std::uint32_t>(out.size());
  const int status = isal_inflate_stateless(state.get());
  return status == ISAL_DECOMP_OK && state->block_state == ISAL_BLOCK_FINISH && state->avail_in == 0 &&
         state->avail_out == 0;
}

/// Slow decoder that reports the fault. \returns the number of decoded bytes.
std::size_t inflate_or_throw(std::span<const std::byte> stream, std::span<std::byte> out, std::string_view shown) {
  z_stream state{};
  if (inflateInit(&state) != Z_OK) {
    throw Error(ErrorCode::kResource, fmt::format("cannot decode {}: out of memory", shown));
  }
  const std::unique_ptr<z_stream, decltype(&inflateEnd)> closed(&state, inflateEnd);
  std::byte more[1];  // zlib needs output space even to detect the end of an empty stream.
  state.next_in = reinterpret_cast<Bytef*>(const_cast<std::byte*>(stream.data()));
  state.avail_in = static_cast<uInt>(stream.size());
  state.next_out = reinterpret_cast<Bytef*>(out.empty() ? more : out.data());
  state.avail_out = static_cast<uInt>(out.size());
  int status = ::inflate(&state, Z_FINISH);
  const std::size_t produced = out.size() - state.avail_out;
  if (status == Z_BUF_ERROR && state.avail_out == 0) {
    state.next_out = reinterpret_cast<Bytef*>(more);
    state.avail_out = sizeof more;
    status = ::inflate(&state, Z_FINISH);
    if (state.avail_out == 0) {
      throw damaged(shown, "its deflate stream decodes to more bytes than the chunk has")
          .expected(fmt::format("{}", out.size()));
    }
  }
  if (status == Z_BUF_ERROR) throw damaged(shown, "its deflate stream is truncated", FindingKind::kTruncated);
  if (status == Z_MEM_ERROR) throw Error(ErrorCode::kResource, fmt::format("cannot decode {}: out of memory", shown));
  if (state.msg != nullptr && std::string_view(state.msg) == "incorrect data check") {
    throw damaged(shown, "the checksum of its deflate stream differs", FindingKind::kCrcMismatch);
  }
  if (status != Z_STREAM_END) {
    throw damaged(shown,
                  fmt::format("it is not a zlib stream: {}", state.msg != nullptr ? state.msg : "no dictionary"));
  }
  if (state.avail_in != 0) throw damaged(shown, "bytes follow its deflate stream");
  return produced;
}

Bytes inflated(std::span<const std::byte> stream, const FilterStep& step, std::string_view shown) {
  Bytes out(static_cast<std::size_t>(step.out.bytes));
  if (step.out.is_exact && inflate_fast(stream, out.span())) return out;
  out.shrink(inflate_or_throw(stream, out.span(), shown));
  if (step.out.is_exact && static_cast<std::int64_t>(out.size()) != step.out.bytes) {
    throw damaged(shown, "its deflate stream decodes to fewer bytes than the chunk has")
        .expected(step.out.bytes)
        .found(static_cast<std::int64_t>(out.size()));
  }
  return out;
}

Bytes expanded(std::span<const std::byte> stream, const FilterStep& step, std::string_view shown) {
  Bytes out(static_cast<std::size_t>(step.out.bytes));
  decoded_view::LzfStream lzf;
  std::span<const std::byte> rest = stream;
  const std::optional<std::size_t> made = lzf.decode(rest, out.span());
  if (!made) throw damaged(shown, "its LZF stream repeats bytes from before its start");
  const bool is_whole = lzf.may_end() && rest.empty();
  if (!is_whole && *made == out.size()) {
    throw damaged(shown, "its LZF stream decodes to more bytes than the chunk has").expected(step.out.bytes);
  }
  if (!is_whole) throw damaged(shown, "its LZF stream is truncated", FindingKind::kTruncated);
  if (step.out.is_exact && *made < out.size()) {
    throw damaged(shown, "its LZF stream decodes to fewer bytes than the chunk has")
        .expected(step.out.bytes)
        .found(static_cast<std::int64_t>(*made));
  }
  out.shrink(*made);
  return out;
}

Bytes checked_sum(Bytes data, std::string_view shown) {
  if (data.size() < kFletcherBytes) throw damaged(shown, "it is shorter than its checksum", FindingKind::kTruncated);
  const std::size_t size = data.size() - kFletcherBytes;
  Fletcher32 sum;
  sum.add(data.span().first(size));
  sum.check(data.span().subspan(size), shown);
  data.shrink(size);
  return data;
}

/// Elements of two, four or eight bytes: loops that compilers can vectorize.
template <class Word>
void unshuffle_words(const std::byte* __restrict planes, std::size_t count, std::byte* __restrict out) {
  for (std::size_t i = 0; i < count; ++i) {
    Word word = 0;
    for (std::size_t k = 0; k < sizeof(Word); ++k) {
      word = static_cast<Word>(word | static_cast<Word>(static_cast<Word>(planes[k * count + i]) << (8 * k)));
    }
    std::memcpy(out + i * sizeof(Word), &word, sizeof(Word));
  }
}

/// Works in blocks that stay in the cache while the planes are written to them one by one.
void unshuffle_any(const std::byte* planes, std::size_t count, std::size_t element_bytes, std::byte* out) {
  const std::size_t block = std::max<std::size_t>(1, (16 << 10) / element_bytes);
  for (std::size_t begin = 0; begin < count; begin += block) {
    const std::size_t end = std::min(count, begin + block);
    for (std::size_t k = 0; k < element_bytes; ++k) {
      for (std::size_t i = begin; i < end; ++i) out[i * element_bytes + k] = planes[k * count + i];
    }
  }
}

}  // namespace

std::vector<FilterStep> steps_to_undo(std::span<const Filter> filters, const ChunkPlace& place, std::int64_t bytes,
                                      std::string_view shown) {
  // Follows the sizes in the order of writing: shuffle keeps the size, fletcher32 adds its sum, and after a compression
  // only an upper limit is known.
  std::vector<FilterStep> steps;
  ByteCount count{bytes};
  for (std::size_t i = 0; i < filters.size(); ++i) {
    if (i < 32 && (place.skipped >> i & 1U) != 0) continue;
    const Filter& filter = filters[i];
    if (filter.kind == FilterKind::kShuffle && filter.parameter == 0) {
      throw damaged(shown, "its shuffle filter is for elements of 0 bytes");
    }
    FilterStep step{.filter = filter, .in = count, .out = count};
    if (filter.kind == FilterKind::kFletcher32) step.in.bytes = checked_add(count.bytes, kFletcherBytes);
    const bool is_compressed = filter.kind == FilterKind::kDeflate || filter.kind == FilterKind::kLzf;
    if (is_compressed) step.in = {longest_stream(count.bytes), false};
    count = step.in;
    steps.push_back(step);
  }
  const bool fits = count.is_exact ? place.bytes == count.bytes : place.bytes <= count.bytes;
  if (!fits) throw damaged(shown, "its stored size does not fit").expected(count.bytes).found(place.bytes);
  std::ranges::reverse(steps);
  return steps;
}

Bytes undo(std::span<const FilterStep> steps, Bytes stored, std::string_view shown) {
  for (const FilterStep& step : steps) {
    if (step.filter.kind == FilterKind::kDeflate) {
      stored = inflated(stored.span(), step, shown);
    } else if (step.filter.kind == FilterKind::kLzf) {
      stored = expanded(stored.span(), step, shown);
    } else if (step.filter.kind == FilterKind::kFletcher32) {
      stored = checked_sum(std::move(stored), shown);
    } else if (step.filter.kind == FilterKind::kShuffle && step.filter.parameter > 1) {
      Bytes elements(stored.size());
      unshuffle(stored.span(), step.filter.parameter, elements.span());
      stored = std::move(elements);
    }
  }
  return stored;
}

void unshuffle(std::span<const std::byte> planes, std::size_t element_bytes, std::span<std::byte> elements) {
  const std::size_t count = planes.size() / element_bytes, whole = count * element_bytes;
  if (element_bytes == 2) {
    unshuffle_words<std::uint16_t>(planes.data(), count, elements.data());
  } else if (element_bytes == 4) {
    unshuffle_words<std::uint32_t>(planes.data(), count, elements.data());
  } else if (element_bytes == 8) {
    unshuffle_words<std::uint64_t>(planes.data(), count, elements.data());
  } else {
    unshuffle_any(planes.data(), count, element_bytes, elements.data());
  }
  std::ranges::copy(planes.subspan(whole), elements.begin() + static_cast<std::ptrdiff_t>(whole));
}

// The sum of the data's big-endian 16-bit words, and the sum of all sums so far, both modulo 65535. Folding the upper
// half into the lower one keeps the value modulo 65535.
void Fletcher32::add(std::span<const std::byte> data) {
  constexpr std::size_t kWords = 360;  // The block size that keeps sum_of_sums_ below 2^32.
  const auto fold = [](std::uint32_t& sum) { sum = (sum & 0xFFFF) + (sum >> 16); };
  const auto fold_all = [&] { fold(sum_), fold(sum_), fold(sum_of_sums_), fold(sum_of_sums_); };
  while (data.size() >= 2) {
    const std::size_t bytes = std::min(data.size() / 2, kWords) * 2;
    for (std::size_t i = 0; i < bytes; i += 2) {
      sum_ += std::to_integer<std::uint32_t>(data[i]) << 8 | std::to_integer<std::uint32_t>(data[i + 1]);
      sum_of_sums_ += sum_;
    }
    fold_all();
    data = data.subspan(bytes);
  }
  if (data.empty()) return;
  sum_ += std::to_integer<std::uint32_t>(data[0]) << 8;
  sum_of_sums_ += sum_;
  fold_all();
}

void Fletcher32::check(std::span<const std::byte> stored, std::string_view shown) const {
  std::uint32_t expected = 0;
  std::memcpy(&expected, stored.data(), sizeof expected);
  const std::uint32_t sum = sum_of_sums_ << 16 | sum_;
  // Each half of the sum with its two bytes exchanged.
  const std::uint32_t swapped = (sum & 0x00FF00FF) << 8 | (sum >> 8 & 0x00FF00FF);
  if (expected == sum || expected == swapped) return;
  throw damaged(shown, "its checksum differs", FindingKind::kCrcMismatch)
      .expected(fmt::format("{:08x}", expected))
      .found(fmt::format("{:08x}", sum));
}

}  // namespace shard::hdf5
