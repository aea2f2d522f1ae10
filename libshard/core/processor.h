/// \file The processors: their number, and the features that both they and the system support. Determined once.
/// Threads: any.
#pragma once

namespace shard {

int usable_processors();  ///< The number that this process may use, at least 1.
bool has_avx();           ///< False on architectures other than x86-64.
bool has_avx2();          ///< False on architectures other than x86-64.
bool has_fma();           ///< AVX2 and fused multiply-adds. False on architectures other than x86-64.
/// AVX-512 with its operations for bfloat16, as in Sapphire Rapids and Zen 4. False on architectures other than x86-64.
bool has_avx512_bfloat16();

}  // namespace shard
