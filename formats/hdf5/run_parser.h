/// \file
/// parse_file() with a given parser program. Inside formats/hdf5 and formats only.
#pragma once

#include <chrono>
#include <string>

#include "formats/hdf5/parser.h"

namespace shard::hdf5 {

/// The parser's argv[0], regardless of its file's name.
inline constexpr char kParserName[] = "shard-hdf5-parser";

struct ParserProgram {
  std::string path;
  std::chrono::milliseconds silence{120'000};  ///< The longest time without a request or an answer.
};

/// See parse_file(). The program's arguments are the file's size, and the limits of processor time in seconds and of
/// memory in bytes.
FileFacts run_parser(const ParserProgram& program, const RandomReader& file, Arena& arena, ParserTime& time,
                     const std::function<void(const Entry&)>& each);

}  // namespace shard::hdf5
