/// \file
/// Bytes as an HDF5 file that the parser reads, for tests.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "formats/hdf5/run_parser.h"

namespace shard::hdf5 {

/// Parses `content` as the file "/file.h5", as the next file of a source. \throws Error
FileFacts parse_bytes(const std::string& content, const std::function<void(const Entry&)>& each, ParserTime& time);
/// The same, as the only file of a source.
FileFacts parse_bytes(const std::string& content, const std::function<void(const Entry&)>& each,
                      std::shared_ptr<Budget> budget = nullptr, const ParserProgram& program = {SHARD_HDF5_PARSER});

/// The parser's reply, a line for each entry; the last for the file, or for the Error that ended it.
std::string parsed_text(const std::string& content);
std::string parsed_text(const RandomReader& file, const ParserProgram& program);

}  // namespace shard::hdf5
