/// \file
/// Distinguishes a normal start of a program that links the formats from a start as its own helper.
///
/// The parser of HDF5 files runs in a separate process (formats/hdf5/README.md). It is a program beside the plug-in.
/// The one-file program has no files beside it, so it starts itself under the parser's name.
/// A library in a different program, which contains the formats like the one-file program, starts that one.
#pragma once

#include <optional>
#include <span>
#include <string>

namespace shard {

/// Must be called first in main(). `arguments` is argv, including the program's name. If the program was started as a
/// helper, does its work and drops the process's rights. \returns the helper's exit code; nothing after a normal start
std::optional<int> run_as_helper(std::span<char*> arguments);

/// The program to start as a helper, if the formats are inside it. By default, it is the program of this process.
/// Threads: any.
std::string helper_program();
/// Replaces it: the path of the one-file program.
void set_helper_program(std::string path);

/// Whether the kernel lets a process filter its system calls (seccomp). Changes nothing. Threads: safe.
bool has_call_filters();

}  // namespace shard
