/// \file Features of the processor that both it and the system support. Determined once. Threads: any.
#pragma once

namespace shard {

bool has_sse42();  ///< False on architectures other than x86-64.
bool has_avx();    ///< False on architectures other than x86-64.
bool has_avx2();   ///< False on architectures other than x86-64.
bool has_fma();    ///< AVX2 and fused multiply-adds. False on architectures other than x86-64.
/// AVX-512 with its operations for bfloat16, as in Sapphire Rapids and Zen 4. False on architectures other than x86-64.
bool has_avx512_bfloat16();

}  // namespace shard
