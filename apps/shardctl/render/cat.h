/// \file
/// What `cat` prints of a tensor: raw bytes, a .npy file, text or JSON. Each in bounded memory, block by block.
#pragma once

#include <vector>

#include "apps/shardctl/session/session.h"
#include "libshard/compare/block_reader.h"

namespace shard::app {

/// What is printed, and its elements.
struct Printed {
  std::string_view name;
  DType dtype;
  std::vector<std::int64_t> shape;
  BlockReader& elements;
};

/// The packed little-endian elements.
void cat_raw(const Session& session, const Printed& tensor);
/// A .npy file (numpy/lib/format.py, version 1.0).
void cat_npy(const Session& session, const Printed& tensor);
/// One element a line of a vector, one row a line of a matrix; of more dimensions matrices, each led by "# [i, j, :,
/// :]" and apart by an empty line. numpy.loadtxt reads it. On a terminal the columns of what is small are aligned.
void cat_text(const Session& session, const Printed& tensor);
/// One document `shardctl.cat/1`: name, type, dtype, shape and all elements as one list, row-major.
void cat_json(const Session& session, const Printed& tensor);

/// Whether numpy has the dtype.
bool fits_npy(DType dtype);

}  // namespace shard::app
