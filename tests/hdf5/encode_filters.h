/// \file
/// HDF5's filters applied, by the tests' own plain loops.
#pragma once

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>

#include "formats/hdf5/described.h"

namespace shard::hdf5::testing {

inline constexpr Filter kDeflated{FilterKind::kDeflate, 0};
inline constexpr Filter kSummed{FilterKind::kFletcher32, 0};
inline constexpr Filter kLzf{FilterKind::kLzf, 0};
inline Filter shuffled(std::uint32_t bytes) { return {FilterKind::kShuffle, bytes}; }

inline std::string deflate(const std::string& text, int level = 1) {
  std::string out(compressBound(text.size()), '\0');
  uLongf size = out.size();
  if (compress2(reinterpret_cast<Bytef*>(out.data()), &size, reinterpret_cast<const Bytef*>(text.data()), text.size(),
                level) != Z_OK)
    throw std::runtime_error("zlib does not compress");
  out.resize(size);
  return out;
}

/// The longest repetition that begins at most 300 bytes before, or literals: short, not good.
inline std::string lzf(const std::string& text) {
  std::string out, literals;
  const auto flush = [&] {
    for (std::size_t i = 0; i < literals.size(); i += 32) {
      const std::string run = literals.substr(i, 32);
      out += static_cast<char>(run.size() - 1);
      out += run;
    }
    literals.clear();
  };
  for (std::size_t at = 0; at < text.size();) {
    std::size_t best = 0, distance = 0;
    for (const std::size_t back : {1U, 2U, 4U, 8U, 64U, 300U}) {
      std::size_t length = 0;
      while (back <= at && length < 264 && at + length < text.size() && text[at + length] == text[at + length - back])
        ++length;
      if (length > best) best = length, distance = back;
    }
    if (best < 3) {
      literals += text[at++];
      continue;
    }
    flush();
    const std::size_t code = best - 2, far = distance - 1;
    out += static_cast<char>(std::min<std::size_t>(code, 7) << 5 | far >> 8);
    if (code >= 7) out += static_cast<char>(code - 7);
    out += static_cast<char>(far & 0xFF);
    at += best;
  }
  flush();
  return out;
}

inline std::string shuffle(const std::string& text, std::size_t width) {
  const std::size_t count = text.size() / width;
  std::string out = text;
  for (std::size_t i = 0; i < count; ++i) {
    for (std::size_t k = 0; k < width; ++k) out[k * count + i] = text[i * width + k];
  }
  return out;
}

/// The definition: sums of big-endian words modulo 65535, with 65535 in place of 0 except for a sum of only zeros.
inline std::uint32_t fletcher32(const std::string& text) {
  std::uint64_t sum = 0, sum_of_sums = 0;
  bool is_zero = true;
  const auto reduced = [](std::uint64_t number) { return number > 0 ? (number - 1) % 65535 + 1 : 0; };
  for (std::size_t i = 0; i < text.size(); i += 2) {
    const auto high = static_cast<unsigned char>(text[i]);
    const auto low = i + 1 < text.size() ? static_cast<unsigned char>(text[i + 1]) : 0;
    is_zero = is_zero && high == 0 && low == 0;
    sum = reduced(sum + high * 256U + static_cast<unsigned>(low));
    sum_of_sums = reduced(sum_of_sums + sum);
  }
  return is_zero ? 0 : static_cast<std::uint32_t>(sum_of_sums << 16 | sum);
}

inline std::string summed(const std::string& text) {
  const std::uint32_t sum = fletcher32(text);
  std::string out = text;
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(sum >> (8 * i)));
  return out;
}

/// The stored bytes of `text`.
inline std::string filtered(std::string text, std::span<const Filter> filters, std::uint32_t skipped = 0) {
  for (std::size_t i = 0; i < filters.size(); ++i) {
    if ((skipped >> i & 1U) != 0) continue;
    if (filters[i].kind == FilterKind::kDeflate) text = deflate(text);
    if (filters[i].kind == FilterKind::kLzf) text = lzf(text);
    if (filters[i].kind == FilterKind::kShuffle) text = shuffle(text, filters[i].parameter);
    if (filters[i].kind == FilterKind::kFletcher32) text = summed(text);
  }
  return text;
}

}  // namespace shard::hdf5::testing
