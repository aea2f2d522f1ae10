/// \file
/// parse_file() with a parser of choice. Inside formats/hdf5 and formats only.
#pragma once

#include <chrono>
#include <string>

#include "formats/hdf5/parser.h"

namespace shard::hdf5 {

/// The name that the parser is started under, whatever its file is called.
inline constexpr char kParserName[] = "shard-hdf5-parser";

struct ParserProgram {
  std::string path;
  std::chrono::milliseconds silence{120'000};  ///< So long it may neither ask nor answer.
};

/// See parse_file(). The program is started with the file's size, the seconds of processor time and the bytes of memory
/// that it may take.
FileFacts run_parser(const ParserProgram& program, const RandomReader& file, Arena& arena, ParserTime& time,
                     const std::function<void(const Entry&)>& each);

}  // namespace shard::hdf5
